#!/usr/bin/env python3
"""Fetches the source archive of a Python package from the package index and checks it.

    scripts/fetch_sdist.py NAME VERSION SHA256 FILE

`pip download` would also build the package's metadata, which needs its whole build system; here only
the sources are wanted. The index is pip's: PIP_INDEX_URL or pip's configuration, else PyPI.
"""

import hashlib
import os
import re
import subprocess
import sys
import urllib.parse
import urllib.request

TIMEOUT_S = 120


def index_url():
    configured = os.environ.get("PIP_INDEX_URL")
    if not configured:
        asked = subprocess.run(
            [sys.executable, "-m", "pip", "config", "get", "global.index-url"],
            capture_output=True, text=True)
        configured = asked.stdout.strip() if asked.returncode == 0 else ""
    return (configured or "https://pypi.org/simple").rstrip("/")


def main():
    name, version, sha256, target = sys.argv[1:]
    page_url = f"{index_url()}/{name}/"
    archive = f"{name}-{version}.tar.gz"
    with urllib.request.urlopen(page_url, timeout=TIMEOUT_S) as reply:
        page = reply.read().decode()
    links = [link for link in re.findall(r'href="([^"]+)"', page)
             if urllib.parse.urlparse(link).path.endswith("/" + archive)]
    if not links:
        sys.exit(f"{page_url} does not list {archive}: set PIP_INDEX_URL to an index that has it")
    url = urllib.parse.urljoin(page_url, links[0])
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as reply:
        data = reply.read()
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        sys.exit(f"{url}: sha256 is {found}, not {sha256}; not used")
    with open(target + ".part", "wb") as out:
        out.write(data)
    os.replace(target + ".part", target)


if __name__ == "__main__":
    try:
        main()
    except OSError as error:
        sys.exit(f"fetching {' '.join(sys.argv[1:3])} failed: {error}")
