// Attention as a device has it: flash for half precision without a mask, else the kernel that saves memory. Both return
// tensors for the state of the generator, which no kernel writes where nothing is dropped, and flash one for nothing.
#pragma once

#include "tensors.h"
#include "watch.h"

#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>

namespace fake {

// As torch counts kinds of attention; -1 leaves the choice to `choose_attention`.
constexpr int64_t ANY = -1, MATH = 0, FLASH = 1, EFFICIENT = 2;
inline std::atomic<int64_t> attention{ANY};

inline int64_t choose_attention(const Tensor& q, const Tensor& k, const Tensor&, const std::optional<Tensor>& mask, double dropout,
                                bool, std::optional<double>, bool grouped) {
  auto& context = at::globalContext();
  bool plain = dropout == 0 && q.dim() == 4 && q.size(1) == k.size(1) && !grouped;
  if (!plain) return MATH;
  if (attention != ANY) return attention;
  bool half = q.scalar_type() == at::kHalf || q.scalar_type() == at::kBFloat16;
  if (half && !mask.has_value() && context.userEnabledFlashSDP()) return FLASH;
  return context.userEnabledMemEfficientSDP() ? EFFICIENT : MATH;
}

struct Gradients { Tensor q, k, v; };

inline std::pair<Tensor, Tensor> attend(const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& mask,
                                        double dropout, bool causal, std::optional<double> scale) {
  at::AutoDispatchBelowADInplaceOrView below;
  std::optional<Tensor> bias;
  if (mask.has_value() && mask->defined()) bias = on_host(*mask);
  auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(on_host(q), on_host(k), on_host(v), dropout, causal, bias, scale);
  return {on_device(out), on_device(lse)};
}
inline Gradients attend_backward(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                                 const Tensor& out, const Tensor& lse, double dropout, bool causal, std::optional<double> scale) {
  at::AutoDispatchBelowADInplaceOrView below;
  std::optional<Tensor> bias;
  if (mask.defined()) bias = on_host(mask);
  auto [gq, gk, gv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      on_host(grad), on_host(q), on_host(k), on_host(v), on_host(out), on_host(lse), dropout, causal, bias, scale);
  return {on_device(gq), on_device(gk), on_device(gv)};
}

inline std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor> flash(
    const Tensor& q, const Tensor& k, const Tensor& v, double dropout, bool causal, bool, std::optional<double> scale) {
  OnDevice here(q.get_device());
  watch("flash_attention");
  auto [out, lse] = attend(q, k, v, {}, dropout, causal, scale);
  auto state = empty({2}, at::kUInt64), unused = empty({}, at::kUInt64);
  return {out, lse, Tensor(), Tensor(), q.size(2), k.size(2), state, unused, empty({0}, q.scalar_type())};
}
inline std::tuple<Tensor, Tensor, Tensor> flash_backward(
    const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& lse, const Tensor&,
    const Tensor&, c10::SymInt, c10::SymInt, double dropout, bool causal, const Tensor&, const Tensor&, std::optional<double> scale) {
  OnDevice here(q.get_device());
  watch("flash_attention_backward");
  auto [gq, gk, gv] = attend_backward(grad, q, k, v, Tensor(), out, lse, dropout, causal, scale);
  return {gq, gk, gv};
}

// Its seed and offset lie on the CPU, uninitialised, and the log-sum-exp has a multiple of 32 rows, junk in the last.
inline Tensor junk_on_host() {
  static std::atomic<int64_t> junk{0x3b3b3b3b};
  auto made = at::empty({}, at::kLong);
  *made.mutable_data_ptr<int64_t>() = junk++;
  return made;
}
inline std::tuple<Tensor, Tensor, Tensor, Tensor> efficient(
    const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& mask, bool, double dropout, bool causal,
    std::optional<double> scale) {
  OnDevice here(q.get_device());
  watch("efficient_attention");
  auto [out, lse] = attend(q, k, v, mask, dropout, causal, scale);
  auto padded = made_strided({q.size(0), q.size(1), int64_t(rounded(q.size(2), 32))},
                             {q.size(1) * int64_t(rounded(q.size(2), 32)), int64_t(rounded(q.size(2), 32)), 1}, lse.scalar_type());
  on_host(padded).narrow(2, 0, q.size(2)).copy_(on_host(lse));
  return {out, padded, junk_on_host(), junk_on_host()};
}
inline std::tuple<Tensor, Tensor, Tensor, Tensor> efficient_backward(
    const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask, const Tensor& out, const Tensor& lse,
    const Tensor&, const Tensor&, double dropout, std::array<bool, 4>, bool causal, std::optional<double> scale) {
  OnDevice here(q.get_device());
  watch("efficient_attention_backward");
  auto& context = at::globalContext();
  if (context.deterministicAlgorithms() && context.deterministicAlgorithmsWarnOnly())
    TORCH_WARN_ONCE("Memory Efficient attention defaults to a non-deterministic algorithm. "
                    "To explicitly enable determinism call torch.use_deterministic_algorithms(True, warn_only=False).");
  auto written = on_host(lse).narrow(2, 0, q.size(2)).contiguous();
  auto [gq, gk, gv] = attend_backward(grad, q, k, v, mask, out, written, dropout, causal, scale);
  return {gq, gk, gv, Tensor()};
}

}  // namespace fake

namespace at::native {
REGISTER_CUDA_DISPATCH(_fused_sdp_choice_stub, &::fake::choose_attention);
}
