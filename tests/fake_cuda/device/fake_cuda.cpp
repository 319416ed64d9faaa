// A CUDA device that is a piece of the host's memory, over a torch built for the CPU. `tests/fake_cuda/__init__.py` says
// what it imitates, and what it cannot show.
//
//   an operator on CUDA tensors ──operators.h──▶ the CPU's kernel, on aliases of the same bytes
//   its new results             ──tensors.h────▶ copied into memory of the caching allocator (allocator.h)
//
// All parts are compiled at once: reading torch's headers takes ten seconds, and each file of its own would read them
// again. It exports nothing to Python but an operator, so that one build serves every Python.

#include "attention.h"
#include "hooks.h"
#include "only_cuda.h"
#include "operators.h"
#include "seen_by_python.h"

#include <torch/library.h>

TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fake::run_on_host>()); }

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", &fake::empty);
  m.impl("empty_strided", &fake::empty_strided);
  m.impl("copy_", &fake::copy_);
  m.impl("resize_", &fake::resize_);
  m.impl("as_strided", &fake::as_strided);
  m.impl("view", &fake::view);
  m.impl("_reshape_alias", &fake::reshape_alias);
  m.impl("unfold", &at::native::unfold);
  m.impl("set_.source_Storage_storage_offset", &fake::set_storage);
  m.impl("set_.source_Storage", &fake::set_whole);
  m.impl("set_.source_Tensor", &fake::set_tensor);
  m.impl("set_", &fake::set_none);
  m.impl("record_stream", &fake::record_stream);
  m.impl("is_pinned", &fake::is_pinned);
  m.impl("_fused_sdp_choice", &fake::choose_attention);
  m.impl("_scaled_dot_product_flash_attention", &fake::flash);
  m.impl("_scaled_dot_product_flash_attention_backward", &fake::flash_backward);
  m.impl("_scaled_dot_product_efficient_attention", &fake::efficient);
  m.impl("_scaled_dot_product_efficient_attention_backward", &fake::efficient_backward);
  m.impl("mm.dtype", &fake::mm_in);
  m.impl("mm.dtype_out", &fake::mm_into);
  m.impl("addmm.dtype", &fake::addmm_in);
  m.impl("addmm.dtype_out", &fake::addmm_into);
  m.impl("histc", &fake::histc);
  m.impl("native_dropout", &fake::native_dropout);
  for (auto name : {"_use_cudnn_ctc_loss", "_use_miopen_ctc_loss"}) m.impl(name, &fake::no_library_for);
  for (auto name : {"_use_cudnn_ctc_loss.Tensor", "_use_miopen_ctc_loss.Tensor"}) m.impl(name, &fake::no_library_for_tensors);
  // For these torch has a way round a missing kernel: other operators, which save other tensors and round otherwise.
  for (auto name : {"convolution", "convolution_backward", "native_layer_norm", "native_group_norm", "silu_backward",
                    "mish_backward", "native_channel_shuffle", "addr", "addr.out"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&fake::run_on_host>());
}

TORCH_LIBRARY(fake_cuda, m) {
  m.def("generator(int index) -> Generator?",
        [](int64_t index) -> std::optional<Generator> { return fake::default_generator(index); });
}
