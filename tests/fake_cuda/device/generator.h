// The generator: a seed, and an offset that moves by 4 with every operator that draws, as Philox's does. The numbers
// are the CPU's, from a seed made of both.
#pragma once

#include "fake.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>

#include <array>
#include <thread>

namespace fake {

struct Philox final : c10::GeneratorImpl {
  uint64_t seed_ = 1, offset_ = 0;
  explicit Philox(DeviceIndex index) : c10::GeneratorImpl(device_at(index), DispatchKeySet(DispatchKey::CUDA)) {}
  void set_current_seed(uint64_t seed) override { seed_ = seed, offset_ = 0; }
  void set_offset(uint64_t offset) override { offset_ = offset; }
  uint64_t get_offset() const override { return offset_; }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return seed_;
  }
  void set_state(const c10::TensorImpl& state) override {
    TORCH_CHECK(state.numel() == 16 && state.dtype() == at::kByte, "RNG state is wrong size");
    auto words = (const uint64_t*)state.data();
    seed_ = words[0], offset_ = words[1];
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    Tensor state = at::detail::empty_cpu({16}, at::kByte, {}, {}, {}, {});
    auto words = (uint64_t*)state.mutable_data_ptr();
    words[0] = seed_, words[1] = offset_;
    return state.getIntrusivePtr();
  }
  Philox* clone_impl() const override {
    auto clone = new Philox(device().index());
    clone->seed_ = seed_, clone->offset_ = offset_;
    return clone;
  }
};

inline Generator& default_generator(DeviceIndex index) {
  static auto& generators = *new std::array<Generator, MOST_DEVICES>{at::make_generator<Philox>(0), at::make_generator<Philox>(1)};
  return generators[index];
}

// So many operators that are about to draw still wait for one another, each in a thread of its own.
inline std::atomic<int64_t> meeting{0};

// An operator of the device that draws gets a generator of its own on the host, in the device's state: the host's default
// one is that of all threads, and two devices draw at the same time.
inline Generator drawing(Generator device) {
  std::lock_guard<std::mutex> hold(device.mutex());
  auto philox = (Philox*)device.unsafeGetGeneratorImpl();
  auto host = at::make_generator<at::CPUGeneratorImpl>(philox->seed_ * 1000003 + philox->offset_);
  philox->offset_ += 4;
  if (meeting > 0)
    for (--meeting; meeting > 0;) std::this_thread::yield();
  return host;
}

}  // namespace fake
