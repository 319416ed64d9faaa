// What torch asks of a CUDA it was not built with, and where it learns of the allocators.
#pragma once

#include "allocator.h"
#include "generator.h"
#include "pinned.h"

#include <ATen/detail/CUDAHooksInterface.h>

namespace at {

// In torch's namespace, as the registering macro wants it.
struct FakeHooks : CUDAHooksInterface {
  explicit FakeHooks(CUDAHooksArgs) {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return fake::devices; }
  int getNumGPUs() const override { return fake::devices; }
  DeviceIndex getCurrentDevice() const override { return fake::current_device; }
  DeviceIndex current_device() const override { return fake::current_device; }
  DeviceIndex exchangeDevice(DeviceIndex index) const override { return fake::exchange_device(index); }
  DeviceIndex maybeExchangeDevice(DeviceIndex index) const override { return fake::exchange_device(index); }
  void setCurrentDevice(DeviceIndex index) const override { fake::exchange_device(index); }
  void init() const override {}
  bool isPinnedPtr(const void* data) const override { return fake::pinned.owns(data); }
  Allocator* getPinnedMemoryAllocator() const override { return &fake::pinned; }
  Device getDeviceFromPtr(void* data) const override {
    std::lock_guard<std::mutex> hold(fake::caching.mutex);
    auto found = fake::caching.used.find(data);
    return fake::device_at(found == fake::caching.used.end() ? fake::current_device : found->second->device);
  }
  const Generator& getDefaultGenerator(DeviceIndex index) const override {
    return fake::default_generator(fake::or_current(index));
  }
  Generator getNewGenerator(DeviceIndex index) const override {
    return at::make_generator<fake::Philox>(fake::or_current(index));
  }
};
REGISTER_CUDA_HOOKS(FakeHooks);

}  // namespace at

namespace fake {

inline int registered = [] {
  c10::SetAllocator(at::kCUDA, &caching, 100);
  at::setHostAllocator(at::kCUDA, &pinned, 100);
  auto& hooks = const_cast<at::CUDAHooksInterface&>(at::detail::getCUDAHooks());
  if (!hooks.hasCUDA()) new (&hooks) at::FakeHooks({});  // somebody asked before we came, and has the address
  return 0;
}();

}  // namespace fake
