// What all parts share: names of torch, how many devices there are, and the figures that are counted.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>

namespace fake {

using at::DataPtr, at::Device, at::DeviceIndex, at::DispatchKey, at::DispatchKeySet, at::Generator, at::IntArrayRef,
    at::Scalar, at::ScalarType, at::Tensor, c10::Stream;

// Arrays have room for so many; how many of them torch sees is set before autograd starts a thread for each.
constexpr int MOST_DEVICES = 2;
inline std::atomic<int> devices{1};

inline Device device_at(DeviceIndex index) { return Device(at::kCUDA, index); }

struct Stat {
  int64_t current = 0, peak = 0, gained = 0, lost = 0;
  void add(int64_t change) {
    current += change, peak = std::max(peak, current);
    (change > 0 ? gained : lost) += std::abs(change);
  }
  void reset_peak() { peak = current; }
  void reset_accumulated() { gained = lost = 0; }
};

}  // namespace fake
