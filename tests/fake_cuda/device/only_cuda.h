// What only CUDA has a kernel for: products of half precision that are added up in another, and histograms of integers.
// And dropout: no other kernel of the CPU draws without a generator among its arguments.
#pragma once

#include "generator.h"
#include "tensors.h"
#include "watch.h"
#include "workspaces.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/histc.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones_like.h>

namespace fake {

inline Tensor in_host(const Tensor& tensor, ScalarType dtype) { return on_host(tensor).to(dtype); }

inline Tensor mm_in(const Tensor& self, const Tensor& other, ScalarType dtype) {
  OnDevice here(self.get_device());
  at::AutoDispatchBelowADInplaceOrView below;
  watch("aten::mm");
  want_workspace(PLAIN);
  return on_device(at::mm(in_host(self, dtype), in_host(other, dtype)));
}
inline Tensor& mm_into(const Tensor& self, const Tensor& other, ScalarType dtype, Tensor& out) {
  auto made = mm_in(self, other, dtype);
  resize_(out, made.sizes(), {});
  return copy_(out, made, false);
}
inline Tensor addmm_in(const Tensor& self, const Tensor& left, const Tensor& right, ScalarType dtype, const Scalar& beta, const Scalar& alpha) {
  OnDevice here(left.get_device());
  at::AutoDispatchBelowADInplaceOrView below;
  watch("aten::addmm");
  want_workspace(BIASED);
  return on_device(at::addmm(in_host(self, dtype), in_host(left, dtype), in_host(right, dtype), beta, alpha));
}
inline Tensor& addmm_into(const Tensor& self, const Tensor& left, const Tensor& right, ScalarType dtype, const Scalar& beta,
                          const Scalar& alpha, Tensor& out) {
  OnDevice here(left.get_device());
  at::AutoDispatchBelowADInplaceOrView below;
  watch("aten::addmm");
  want_workspace(BIASED);
  auto made = at::addmm(in_host(self, dtype), in_host(left, dtype), in_host(right, dtype), beta, alpha);
  resize_(out, made.sizes(), {});
  on_host(out).copy_(made);  // where it is `self`, no memory of the device is taken
  return out;
}

inline Tensor histc(const Tensor& self, int64_t bins, const Scalar& least, const Scalar& most) {
  OnDevice here(self.get_device());
  at::AutoDispatchBelowADInplaceOrView below;
  watch("aten::histc");
  auto host = on_host(self);
  if (!at::isIntegralType(host.scalar_type(), false)) return on_device(at::histc(host, bins, least, most));
  return on_device(at::histc(host.to(at::kDouble), bins, least, most).to(host.scalar_type()));
}

inline std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p, std::optional<bool> train) {
  OnDevice here(input.get_device());
  at::AutoDispatchBelowADInplaceOrView below;
  watch("aten::native_dropout");
  auto host = on_host(input);
  if (!input.numel() || !train.value_or(true)) return {on_device(host), on_device(at::ones_like(host, at::kBool))};
  auto mask = at::empty_like(host, at::kBool).bernoulli_(1 - p, drawing(default_generator(current_device)));
  return {on_device(host.mul(mask).mul_(p < 1 ? 1 / (1 - p) : 0)), on_device(mask)};
}

// Neither cuDNN nor MIOpen is there.
inline bool no_library_for(const Tensor&, const Tensor&, IntArrayRef, IntArrayRef, int64_t) { return false; }
inline bool no_library_for_tensors(const Tensor&, const Tensor&, const Tensor&, const Tensor&, int64_t) { return false; }

}  // namespace fake
