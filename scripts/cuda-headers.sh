#!/usr/bin/env bash
# Fetches the kernel headers that scripts/cuda-headers.txt names into build/cuda-headers, once.
# Prints nothing and returns at once when they are there.
set -euo pipefail
cd "$(dirname "$0")/.."
list=scripts/cuda-headers.txt
out=build/cuda-headers
stamp=$out/$(sha256sum "$list" "$0" | sha256sum | cut -c1-16)
[ -e "$stamp" ] && exit 0
echo "fetching kernel headers for the CUDA build into $out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
grep -v '^#' "$list" | while read -r requirement; do  # one by one: two versions of one package
  printf '%s\n' "$requirement" >"$work/requirement.txt"
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
    --require-hashes --dest "$work" -r "$work/requirement.txt"
done
rm -rf "$out"
mkdir -p "$out"
python3 - "$work" "$out" <<'PY'
import pathlib, sys, zipfile

work, out = map(pathlib.Path, sys.argv[1:])
# wheel name prefix -> {folder in the wheel: folder here}
TAKE = {
    "flashinfer_python-0.7": {f"flashinfer/data/{d}/": f"{d}/" for d in ("include", "cccl", "cutlass")},
    "flashinfer_python-0.6": {"flashinfer/data/include/flashinfer/flat/": "flat/flashinfer/flat/"},
    "sgl_deep_gemm-": {"deep_gemm/include/deep_gemm/": "deep_gemm/deep_gemm/"},
}
for prefix, folders in TAKE.items():
    (wheel,) = work.glob(prefix + "*.whl")
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            for source, target in folders.items():
                if name.startswith(source) and not name.endswith("/"):
                    path = out / target / name[len(source):]
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(archive.read(name))
PY
touch "$stamp"
