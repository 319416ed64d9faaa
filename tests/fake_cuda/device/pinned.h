// Pinned memory, by the rules of torch's caching host allocator: blocks of powers of two, never split, never given back
// but by an `empty_cache` of its own.
#pragma once

#include "fake.h"

#include <ATen/core/CachingHostAllocator.h>

#include <map>
#include <unordered_map>
#include <vector>

namespace fake {

struct Pinned final : at::HostAllocator {
  std::mutex mutex;
  std::map<size_t, std::vector<void*>> spare;
  std::map<const char*, size_t> used;
  at::HostStats stats;  // allocated: all that is pinned; active: of that, what is handed out
  std::atomic<int64_t> limit{INT64_MAX};

  DataPtr allocate(size_t asked) override {
    if (!asked) return {nullptr, nullptr, &release, at::kCPU};
    std::lock_guard<std::mutex> hold(mutex);
    size_t bytes = 1;
    while (bytes < asked) bytes *= 2;
    auto& fitting = spare[bytes];
    if (fitting.empty()) fitting.push_back(pin(bytes));
    void* start = fitting.back();
    fitting.pop_back();
    used[(char*)start] = bytes;
    stats.active_bytes.increase(bytes), stats.active_requests.increase(1);
    return {start, start, &release, at::kCPU};
  }
  void free(void* start) {
    std::lock_guard<std::mutex> hold(mutex);
    auto bytes = used.at((char*)start);
    used.erase((char*)start), spare[bytes].push_back(start);
    stats.active_bytes.decrease(bytes), stats.active_requests.decrease(1);
  }
  bool owns(const void* data) {
    std::lock_guard<std::mutex> hold(mutex);
    auto next = used.upper_bound((const char*)data);
    if (next == used.begin()) return false;
    auto& [start, bytes] = *--next;
    return data < start + bytes;
  }
  static void release(void* start);
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { memcpy(to, from, bytes); }
  bool record_event(void*, void*, c10::Stream) override { return true; }

  void empty_cache() override {
    std::lock_guard<std::mutex> hold(mutex);
    for (auto& [bytes, blocks] : spare) {
      for (auto each : blocks) {
        ::free(each);
        stats.allocated_bytes.decrease(bytes), stats.allocations.decrease(1), stats.num_host_free++;
      }
      blocks.clear();
    }
  }
  at::HostStats get_stats() override {
    std::lock_guard<std::mutex> hold(mutex);
    return stats;
  }
  void reset_accumulated_stats() override {
    std::lock_guard<std::mutex> hold(mutex);
    for (auto* each : all()) each->reset_accumulated();
    stats.num_host_alloc = stats.num_host_free = 0;
  }
  void reset_peak_stats() override {
    std::lock_guard<std::mutex> hold(mutex);
    for (auto* each : all()) each->reset_peak();
  }

 private:
  std::vector<at::Stat*> all() {
    return {&stats.active_requests, &stats.active_bytes, &stats.allocations, &stats.allocated_bytes};
  }
  void* pin(size_t bytes) {
    void* start = nullptr;
    bool full = stats.allocated_bytes.current + (int64_t)bytes > limit;
    TORCH_CHECK(!full && !posix_memalign(&start, 4096, bytes), "CUDA error: out of memory (no ", bytes, " bytes can be pinned)");
    stats.allocated_bytes.increase(bytes), stats.allocations.increase(1), stats.num_host_alloc++;
    return start;
  }
};

inline Pinned& pinned = *new Pinned();
inline void Pinned::release(void* start) {
  if (start) pinned.free(start);
}

}  // namespace fake
