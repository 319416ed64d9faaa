// Plain functions for ctypes: no mode that watches operators must see them. Generators alone come by an operator.
#pragma once

#include "attention.h"
#include "hooks.h"
#include "workspaces.h"

using namespace fake;

extern "C" {

void fake_devices(int64_t count) { devices = std::min<int64_t>(count, MOST_DEVICES); }
int64_t fake_exchange_device(int64_t index) { return index < devices ? exchange_device(index) : -2; }
int64_t fake_stream(int64_t index) { return current_streams[index]; }
void fake_set_stream(int64_t index, int64_t id) { exchange_device(index), current_streams[index] = id; }

// In the order of device.py: for each of `Counted`, for all and the small and the large pool, four figures.
void fake_stats(int64_t index, int64_t* found) {
  std::lock_guard<std::mutex> hold(caching.mutex);
  auto& here = caching.memory[index];
  for (auto& pools : here.stats)
    for (auto& stat : pools)
      for (auto figure : {stat.current, stat.peak, stat.gained, stat.lost}) *found++ = figure;
  *found++ = here.retries, *found++ = here.failures;
}
void fake_reset_peaks(int64_t index) {
  std::lock_guard<std::mutex> hold(caching.mutex);
  for (auto& pools : caching.memory[index].stats) for (auto& stat : pools) stat.reset_peak();
}
void fake_reset_accumulated(int64_t index) {
  std::lock_guard<std::mutex> hold(caching.mutex);
  auto& here = caching.memory[index];
  for (auto& pools : here.stats) for (auto& stat : pools) stat.reset_accumulated();
  here.retries = here.failures = 0;
}
int64_t fake_take_peak(int64_t index) {  // since it was taken last: a witness that `torch.cuda` knows nothing of
  std::lock_guard<std::mutex> hold(caching.mutex);
  auto& here = caching.memory[index];
  return std::exchange(here.watched_peak, here.now(ALLOCATED));
}
void fake_empty_cache() {
  std::lock_guard<std::mutex> hold(caching.mutex);
  for (auto& each : caching.memory) caching.empty_cache(each);
}
void fake_limit(int64_t index, int64_t bytes) {
  std::lock_guard<std::mutex> hold(caching.mutex);
  caching.memory[index].limit = bytes;
}
int64_t fake_limit_of(int64_t index) { return caching.memory[index].limit; }

void fake_host_stats(int64_t* found) {
  auto stats = pinned.get_stats();
  for (auto* stat : {&stats.active_requests, &stats.active_bytes, &stats.allocations, &stats.allocated_bytes})
    for (auto figure : {stat->current, stat->peak, stat->allocated, stat->freed}) *found++ = figure;
  *found++ = stats.num_host_alloc, *found++ = stats.num_host_free;
}
void fake_reset_host_peaks() { pinned.reset_peak_stats(); }
void fake_reset_accumulated_host() { pinned.reset_accumulated_stats(); }
void fake_empty_host_cache() { pinned.empty_cache(); }

void fake_set_mib(int64_t bytes) { mib = bytes; }
void fake_set_workspace(int64_t bytes) { workspace_bytes[PLAIN] = bytes; }
void fake_set_bias_workspace(int64_t bytes) { workspace_bytes[BIASED] = bytes; }
void fake_forget_workspaces() { forget_workspaces(); }
void fake_set_scratch(int64_t bytes) { scratch_bytes = bytes; }
void fake_set_attention(int64_t kind) { attention = kind; }
void fake_set_reports(int64_t on) { reports = on; }
int64_t fake_reporting() { return reports; }
void fake_set_capturing(int64_t on) { capturing = on; }
int64_t fake_capturing() { return capturing; }
void fake_set_pinned_limit(int64_t bytes) { pinned.limit = bytes; }

void fake_meet(int64_t draws) { meeting = draws; }

void fake_watch(int64_t on) {
  std::lock_guard<std::mutex> hold(watching);
  watched = on;
  if (on) seen.clear();
}
const char* fake_seen() { return seen.c_str(); }  // while nobody watches
}
