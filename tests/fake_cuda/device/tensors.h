// Tensors of the device as the CPU's kernels see them, and the operators that make them, copy them and give them
// another storage or shape.
#pragma once

#include "allocator.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>

namespace fake {

// Returns the same bytes as a tensor of the CPU.
inline Tensor on_host(const Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cuda()) return tensor;
  auto& storage = tensor.storage();
  c10::Storage bytes(c10::Storage::use_byte_size_t(), storage.nbytes(), DataPtr(storage.mutable_data(), at::kCPU), nullptr, false);
  auto alias = at::detail::make_tensor<c10::TensorImpl>(std::move(bytes), DispatchKeySet(DispatchKey::CPU), tensor.dtype());
  auto* impl = alias.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  if (tensor.is_conj()) alias._set_conj(true);
  if (tensor.is_neg()) alias._set_neg(true);
  return alias;
}

inline ScalarType or_default(std::optional<ScalarType> dtype) {
  return dtype.value_or(c10::get_default_dtype_as_scalartype());
}
inline DeviceIndex index_of(std::optional<Device> device) { return device.has_value() ? device->index() : DeviceIndex(-1); }

// Deterministic algorithms fill what `torch.empty` and its like return; what kernels make for themselves stays junk.
inline Tensor filled_if_asked(Tensor tensor) {
  auto& context = at::globalContext();
  if (context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory()) {
    auto host = on_host(tensor);
    at::native::fill_empty_deterministic_(host);
  }
  return tensor;
}

inline Tensor made_strided(IntArrayRef size, IntArrayRef stride, ScalarType dtype) {
  return at::detail::empty_strided_generic(size, stride, &caching, DispatchKeySet(DispatchKey::CUDA), dtype);
}

inline Tensor empty(IntArrayRef size, std::optional<ScalarType> dtype, std::optional<at::Layout> = {}, std::optional<Device> device = {},
                    std::optional<bool> = {}, std::optional<at::MemoryFormat> format = {}) {
  OnDevice here(index_of(device));
  return filled_if_asked(at::detail::empty_generic(size, &caching, DispatchKeySet(DispatchKey::CUDA), or_default(dtype), format));
}
inline Tensor empty_strided(IntArrayRef size, IntArrayRef stride, std::optional<ScalarType> dtype, std::optional<at::Layout> = {},
                            std::optional<Device> device = {}, std::optional<bool> = {}) {
  OnDevice here(index_of(device));
  return filled_if_asked(made_strided(size, stride, or_default(dtype)));
}

// Returns a copy of a tensor of the CPU on the current device.
inline Tensor on_device(const Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  auto copy = made_strided(tensor.sizes(), tensor.strides(), tensor.scalar_type());
  on_host(copy).copy_(tensor);
  return copy;
}

inline const Tensor& resize_(const Tensor& self, IntArrayRef size, std::optional<at::MemoryFormat> format) {
  OnDevice here(self.device().index());
  auto* impl = self.unsafeGetTensorImpl();
  auto* storage = impl->unsafe_storage().unsafeGetStorageImpl();
  size_t elements = 1;
  for (auto each : size) elements *= each;
  size_t wanted = elements ? (elements + self.storage_offset()) * self.itemsize() : 0;
  if (storage->nbytes() < wanted) {
    auto data = caching.allocate(wanted);
    if (storage->data()) memcpy(data.get(), storage->data(), storage->nbytes());
    storage->set_data_ptr_noswap(std::move(data));
    storage->set_nbytes(wanted);
  }
  impl->set_sizes_contiguous(size);
  if (format.has_value()) impl->empty_tensor_restride(*format);
  return self;
}

inline Tensor& copy_(Tensor& self, const Tensor& source, bool) {
  at::AutoDispatchBelowADInplaceOrView below;
  on_host(self).copy_(on_host(source));
  return self;
}

inline Tensor& set_storage(Tensor& self, c10::Storage storage, int64_t offset, IntArrayRef size, IntArrayRef stride) {
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(storage));
  self.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride, offset);
  return self;
}
inline Tensor& set_tensor(Tensor& self, const Tensor& source) {
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}
inline Tensor& set_whole(Tensor& self, c10::Storage storage) {
  int64_t elements = storage.nbytes() / self.itemsize();
  return set_storage(self, std::move(storage), 0, {elements}, {1});
}
inline Tensor& set_none(Tensor& self) {
  OnDevice here(self.device().index());
  return set_storage(self, c10::Storage(c10::Storage::use_byte_size_t(), 0, caching.allocate(0), &caching, true), 0, {0}, {1});
}

inline Tensor as_strided(const Tensor& self, IntArrayRef size, IntArrayRef stride, std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}
inline Tensor view(const Tensor& self, IntArrayRef size) { return at::native::view(self, size); }
inline Tensor reshape_alias(const Tensor& self, IntArrayRef size, IntArrayRef stride) {
  return at::native::_reshape_alias(self, size, stride);
}
inline void record_stream(Tensor&, Stream) {}
inline bool is_pinned(const Tensor&, std::optional<Device>) { return false; }

}  // namespace fake
