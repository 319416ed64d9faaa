// The generator: a seed, and an offset that moves by 4 with every operator that draws, as Philox's does. The numbers
// are the CPU's, from a seed made of both.
#pragma once

#include "fake.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>

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
  static Generator generators[MOST_DEVICES] = {at::make_generator<Philox>(0), at::make_generator<Philox>(1)};
  return generators[index];
}

// While an operator of the device that draws runs on the host, the host's generator is in the device's state.
struct Drawing {
  Generator host = at::detail::getDefaultCPUGenerator();
  Tensor before;
  explicit Drawing(const Generator& device) {
    auto philox = (Philox*)device.unsafeGetGeneratorImpl();
    std::lock_guard<std::mutex> hold(host.mutex());
    before = Tensor(host.get_state());
    host.set_current_seed(philox->seed_ * 1000003 + philox->offset_);
    philox->offset_ += 4;
  }
  ~Drawing() {
    std::lock_guard<std::mutex> hold(host.mutex());
    host.set_state(before);
  }
};

}  // namespace fake
