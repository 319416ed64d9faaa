// Streams, events, and the guard by which torch asks and sets the current device and stream.
//
// Work is done at once, so a stream is only a number: that of the pool in which the allocator looks for blocks, and what
// autograd remembers of a forward. Both the current device and its stream belong to a thread, as on CUDA.
#pragma once

#include "fake.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace fake {

inline thread_local DeviceIndex current_device = 0;
inline thread_local c10::StreamId current_streams[MOST_DEVICES] = {};
inline std::atomic<c10::StreamId> last_stream{0};
inline std::atomic<bool> capturing{false};  // said of every stream, whether one captures or not

inline DeviceIndex or_current(DeviceIndex index) { return index < 0 ? current_device : index; }

inline DeviceIndex exchange_device(DeviceIndex index) {
  TORCH_CHECK(index < devices, "CUDA error: invalid device ordinal: ", int(index), " of ", devices.load());
  auto before = current_device;
  if (index >= 0) current_device = index;
  return before;
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceType static_type = at::kCUDA;
  Guard() = default;
  explicit Guard(c10::DeviceType) {}
  c10::DeviceType type() const override { return at::kCUDA; }
  DeviceIndex deviceCount() const noexcept override { return devices; }
  Device getDevice() const override { return device_at(current_device); }
  Device exchangeDevice(Device device) const override { return device_at(exchange_device(device.index())); }
  void setDevice(Device device) const override { exchange_device(device.index()); }
  void uncheckedSetDevice(Device device) const noexcept override {
    if (device.index() >= 0 && device.index() < devices) current_device = device.index();
  }

  Stream getStream(Device device) const override {
    auto index = or_current(device.index());
    return Stream(Stream::UNSAFE, device_at(index), current_streams[index]);
  }
  Stream getDefaultStream(Device device) const override {
    return Stream(Stream::DEFAULT, device_at(or_current(device.index())));
  }
  Stream getNewStream(Device device, int) const override {
    return Stream(Stream::UNSAFE, device_at(or_current(device.index())), ++last_stream);
  }
  Stream getStreamFromGlobalPool(Device device, bool) const override { return getNewStream(device, 0); }
  Stream exchangeStream(Stream next) const override {
    auto before = getStream(next.device());
    current_streams[next.device_index()] = next.id();
    return before;
  }

  void record(void** event, const Stream&, const DeviceIndex, const c10::EventFlag) const override { *event = (void*)1; }
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const DeviceIndex) const noexcept override {}
  bool isStreamCapturing(const Stream&) const { return capturing; }  // overrides nothing before torch 2.12
  bool queryStream(const Stream&) const override { return true; }
  void synchronizeStream(const Stream&) const override {}
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(const DeviceIndex) const override {}
  void recordDataPtrOnStream(const DataPtr&, const Stream&) const override {}
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard);

// The device on which an operator runs is current while it does.
struct OnDevice {
  DeviceIndex before;
  explicit OnDevice(DeviceIndex index) : before(exchange_device(index)) {}
  ~OnDevice() { current_device = before; }
};

}  // namespace fake
