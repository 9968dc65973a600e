// exp for SIMD vectors: 2^n times a polynomial of degree 6 on [-ln2/2, ln2/2] (Cephes' expf
// coefficients), within 2 units in the last place. exp(0) = 1 exactly; below -87.3 it is 0; NaN
// stays.
#pragma once

namespace vamp::cpu::VAMP_ISA {

inline Vec::F Vec::exp(F x) {
  const F low = set(-87.3f);
  const F y = max(low, min(set(88.3f), x));  // in this order NaN passes through
  const F n = round(mul(y, set(1.44269504088896341f)));
  F r = fma(n, set(-0.693359375f), y);
  r = fma(n, set(2.12194440e-4f), r);
  F p = set(1.9875691500e-4f);
  p = fma(p, r, set(1.3981999507e-3f));
  p = fma(p, r, set(8.3334519073e-3f));
  p = fma(p, r, set(4.1665795894e-2f));
  p = fma(p, r, set(1.6666665459e-1f));
  p = fma(p, r, set(5.0000001201e-1f));
  p = fma(p, mul(r, r), add(r, set(1.0f)));
  return zero_below(scale(p, n), x, low);
}

}  // namespace vamp::cpu::VAMP_ISA
