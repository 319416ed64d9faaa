// Every operator without a kernel of its own: the CPU's runs on aliases of the arguments, and what it makes anew is
// copied into memory of the device.
//
//   arguments ──Arguments──▶ tensors of the CPU over the same bytes ──the CPU's kernel──▶ results
//     a result that is an argument      ──▶ that argument
//     a result over an argument's bytes ──▶ a view of it
//     any other                         ──▶ a copy in memory of the device
#pragma once

#include "generator.h"
#include "tensors.h"
#include "watch.h"
#include "workspaces.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>

namespace fake {

inline bool has(const std::string& name, const char* part) { return name.find(part) != std::string::npos; }

// Returns the device of the first tensor on one, of a `device` argument else, or the current one.
inline DeviceIndex where(const torch::jit::Stack& given) {
  DeviceIndex asked = -1;
  for (const auto& value : given) {
    if (value.isTensor() && value.toTensor().defined() && value.toTensor().is_cuda()) return value.toTensor().get_device();
    if (value.isTensorList())
      for (const Tensor& each : value.toTensorVector()) if (each.defined() && each.is_cuda()) return each.get_device();
    if (value.isDevice() && value.toDevice().is_cuda()) asked = value.toDevice().index();
  }
  return or_current(asked);
}

struct Arguments {
  const c10::OperatorHandle& op;
  DeviceIndex index;
  Generator generator;
  torch::jit::Stack host;
  std::vector<std::pair<Tensor, Tensor>> aliases;  // of the host, of the device
  std::vector<std::pair<Tensor, Tensor>> grown;    // empty `out=`, which the CPU's kernel resizes

  Arguments(const c10::OperatorHandle& op, const torch::jit::Stack& given)
      : op(op), index(where(given)), generator(default_generator(index)) {
    for (size_t i = 0; i < given.size(); i++) host.push_back(translated(given[i], op.schema().arguments()[i]));
  }

  Tensor alias(const Tensor& tensor, bool out) {
    if (!tensor.defined() || !tensor.is_cuda()) return tensor;
    bool grows = out && tensor.numel() == 0;
    auto made = grows ? at::empty({0}, tensor.options().device(at::kCPU)) : on_host(tensor);
    aliases.emplace_back(made, tensor);
    if (grows) grown.emplace_back(made, tensor);
    return made;
  }

  // Kernels of CUDA take tensors of one device, numbers in tensors of none, and indices from the host.
  void check(const Tensor& tensor, const c10::Argument& argument) {
    const std::string& name = op.schema().name();
    if (!tensor.defined()) return;
    bool fits = tensor.is_cuda() ? tensor.get_device() == index : !tensor.dim() || has(name, "index") || has(name, "copy");
    TORCH_CHECK(fits, "Expected all tensors to be on the same device, but found at least two devices, cuda:", int(index), " and ",
                tensor.device(), "! (when checking argument ", argument.name(), " of ", name, ")");
  }

  c10::IValue translated(const c10::IValue& value, const c10::Argument& argument) {
    if (value.isTensor()) {
      check(value.toTensor(), argument);
      return alias(value.toTensor(), argument.is_out());
    }
    if (value.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& each : value.toTensorVector()) check(each, argument), list.push_back(alias(each, argument.is_out()));
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> list;
      for (const auto& each : value.toOptionalTensorVector())
        list.push_back(each.has_value() ? std::optional<Tensor>(alias(*each, false)) : std::nullopt);
      return list;
    }
    if (value.isDevice()) return Device(at::kCPU);
    if (!value.isGenerator()) return value;
    if (value.toGenerator().device().is_cuda()) generator = value.toGenerator();
    return c10::IValue();
  }

  // Gives the CPU's kernel a generator to draw from.
  void draw() {
    for (size_t i = 0; i < host.size(); i++)
      if (op.schema().arguments()[i].type()->str().find("Generator") != std::string::npos) {
        host[i] = drawing(generator);
        return;
      }
    TORCH_CHECK(false, "the fake CUDA device has no kernel for ", op.schema().name(), ", which draws and takes no generator");
  }

  void fill_grown() {
    for (auto& [made, tensor] : grown) {
      resize_(tensor, made.sizes(), {});
      tensor.unsafeGetTensorImpl()->set_sizes_and_strides(made.sizes(), made.strides());
      on_host(tensor).copy_(made);
    }
  }

  Tensor back(const Tensor& result) {
    if (!result.defined()) return result;
    for (auto& [made, tensor] : aliases) if (made.is_same(result)) return tensor;
    for (auto& [made, tensor] : aliases)
      if (result.numel() && made.storage().data() && made.storage().data() == result.storage().data()) {
        auto view = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(tensor.storage()), DispatchKeySet(DispatchKey::CUDA),
                                                             result.dtype());
        view.unsafeGetTensorImpl()->set_sizes_and_strides(result.sizes(), result.strides(), result.storage_offset());
        return view;
      }
    return on_device(result);
  }
  c10::IValue back(const c10::IValue& value) {
    if (value.isTensor()) return back(value.toTensor());
    if (!value.isTensorList()) return value;
    c10::List<Tensor> list;
    for (const Tensor& each : value.toTensorVector()) list.push_back(back(each));
    return list;
  }
};

inline void run_on_host(const c10::OperatorHandle& op, DispatchKeySet, torch::jit::Stack* stack) {
  const std::string& name = op.schema().name();
  auto first = stack->end() - op.schema().arguments().size();
  torch::jit::Stack given(first, stack->end());
  stack->erase(first, stack->end());
  at::AutoDispatchBelowADInplaceOrView below;
  Arguments arguments(op, given);
  OnDevice here(arguments.index);
  watch(name);
  if (has(name, "mm") || has(name, "addmv")) want_workspace(PLAIN);
  if (has(name, "addmm")) want_workspace(BIASED);
  DataPtr scratch = has(name, "convolution") && scratch_bytes ? caching.allocate(scratch_bytes) : DataPtr();
  if (op.hasTag(at::Tag::nondeterministic_seeded) && !has(name, "backward")) arguments.draw();
  op.callBoxed(arguments.host);
  arguments.fill_grown();
  for (auto& value : arguments.host) stack->push_back(arguments.back(value));
}

}  // namespace fake
