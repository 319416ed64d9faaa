// The caching allocator, by the rules of c10/cuda/CUDACachingAllocator.cpp.
//
//   request ──rounded to 512 bytes──▶ a free block of the stream's pool, the smallest that is large enough
//                                     or a new segment: 2 MiB  for requests up to 1 MiB (the small pool),
//                                                       20 MiB for those below 10 MiB,
//                                                       multiples of 2 MiB for larger ones
//   A block is split where 512 bytes (small) or more than 1 MiB (large) are left; else the whole of it is handed out,
//   and counts. Freed neighbours become one block. Where the limit is reached, whole free segments are given back
//   first. Every block that is handed out is filled with other junk than the last.
#pragma once

#include "streams.h"

#include <set>
#include <tuple>
#include <unordered_map>

namespace fake {

inline std::atomic<size_t> mib{1 << 20};         // less of it makes a toy as large beside segments as a real model is
inline std::atomic<bool> reports{true};          // cudaMallocAsync tells the profiler nothing
inline size_t rounded(size_t bytes, size_t grain) { return (bytes + grain - 1) / grain * grain; }

struct Block {
  char* start;
  size_t bytes, asked = 0;
  DeviceIndex device;
  bool large;
  c10::StreamId stream;
  bool used = false;
  Block *before = nullptr, *after = nullptr;
  bool of_several() const { return before || after; }
};
struct BySize {
  bool operator()(const Block* a, const Block* b) const {
    return std::tie(a->stream, a->bytes, a->start) < std::tie(b->stream, b->bytes, b->start);
  }
};

enum Counted { ALLOCATED, RESERVED, REQUESTED, INACTIVE, BLOCKS, SEGMENTS, INACTIVE_BLOCKS, COUNTED };

// Of one device.
struct Memory {
  std::set<Block*, BySize> free[2];  // small, large
  Stat stats[COUNTED][3];            // all, small pool, large pool
  int64_t retries = 0, failures = 0, watched_peak = 0;
  size_t total = size_t(8) << 30, limit = total;

  void count(Counted what, const Block* block, int64_t change) {
    stats[what][0].add(change), stats[what][1 + block->large].add(change);
  }
  int64_t now(Counted what) const { return stats[what][0].current; }
};

struct Caching final : c10::Allocator {
  std::mutex mutex;
  Memory memory[MOST_DEVICES];
  std::unordered_map<void*, Block*> used;
  int64_t junk = 0;

  DataPtr allocate(size_t asked) override {
    auto index = current_device;
    if (!asked) return {nullptr, nullptr, &release, device_at(index)};
    auto& here = memory[index];
    Block* block;
    int64_t now, kept;
    {
      std::lock_guard<std::mutex> hold(mutex);
      block = free_block(here, rounded(asked, 512));
      if (!block) block = new_segment(here, index, rounded(asked, 512), asked);
      split(here, block, rounded(asked, 512));
      block->used = true, block->asked = asked, used[block->start] = block;
      count_used(here, block, 1);
      now = here.now(ALLOCATED), kept = here.now(RESERVED), here.watched_peak = std::max(here.watched_peak, now);
      memset(block->start, 0x3b + junk++ % 197, block->bytes);  // 0xff too, which is NaN
    }
    if (reports) c10::reportMemoryUsageToProfiler(block->start, block->bytes, now, kept, device_at(index));
    return {block->start, block->start, &release, device_at(index)};
  }
  static void release(void* start);
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { memcpy(to, from, bytes); }

  void free(void* start) {
    int64_t bytes, now, kept;
    DeviceIndex index;
    {
      std::lock_guard<std::mutex> hold(mutex);
      auto block = used.at(start);
      used.erase(start);
      index = block->device, bytes = block->bytes;
      auto& here = memory[index];
      block->used = false;
      count_used(here, block, -1);
      if (block->before && !block->before->used) block = joined(here, block->before, block);
      if (block->after && !block->after->used) block = joined(here, block, block->after);
      shelve(here, block);
      now = here.now(ALLOCATED), kept = here.now(RESERVED);
    }
    if (reports) c10::reportMemoryUsageToProfiler(start, -bytes, now, kept, device_at(index));
  }

  // Gives back every segment of which nothing is used.
  void empty_cache(Memory& here) {
    for (auto& pool : here.free)
      for (auto each = pool.begin(); each != pool.end();) {
        auto block = *each++;
        if (block->of_several()) continue;
        unshelve(here, block);
        here.count(RESERVED, block, -(int64_t)block->bytes), here.count(SEGMENTS, block, -1);
        ::free(block->start);
        delete block;
      }
  }

 private:
  static void count_used(Memory& here, const Block* block, int64_t sign) {
    here.count(ALLOCATED, block, sign * (int64_t)block->bytes), here.count(REQUESTED, block, sign * (int64_t)block->asked);
    here.count(BLOCKS, block, sign);
  }

  // A free block beside used ones is inactive: no empty_cache gives it back. What is beside a block on the shelf never
  // changes, since free neighbours are joined; so both count the same.
  static void shelve(Memory& here, Block* block) {
    here.free[block->large].insert(block);
    if (block->of_several()) here.count(INACTIVE, block, block->bytes), here.count(INACTIVE_BLOCKS, block, 1);
  }
  static void unshelve(Memory& here, Block* block) {
    if (!here.free[block->large].erase(block)) return;
    if (block->of_several()) here.count(INACTIVE, block, -(int64_t)block->bytes), here.count(INACTIVE_BLOCKS, block, -1);
  }

  static Block* free_block(Memory& here, size_t bytes) {
    auto& pool = here.free[bytes > mib];
    auto stream = current_streams[current_device];
    Block least{nullptr, bytes, 0, current_device, bytes > mib, stream};
    auto each = pool.lower_bound(&least);
    if (each == pool.end() || (*each)->stream != stream) return nullptr;
    auto block = *each;
    unshelve(here, block);
    return block;
  }

  Block* new_segment(Memory& here, DeviceIndex index, size_t bytes, size_t asked) {
    size_t unit = mib, size = bytes <= unit ? 2 * unit : bytes < 10 * unit ? 20 * unit : rounded(bytes, 2 * unit);
    if (here.now(RESERVED) + size > here.limit) {
      here.retries++;
      empty_cache(here);
    }
    if (here.now(RESERVED) + size > here.limit) {
      here.failures++;
      TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", asked, " bytes. GPU ", int(index),
                       " allows ", here.limit, " bytes, of which ", here.now(ALLOCATED), " are allocated, and ",
                       here.now(RESERVED) - here.now(ALLOCATED), " reserved but unallocated.");
    }
    void* start = nullptr;
    TORCH_CHECK(!posix_memalign(&start, 512, size), "the host has no ", size, " bytes for the fake device");
    auto block = new Block{(char*)start, size, 0, index, bytes > unit, current_streams[index]};
    here.count(RESERVED, block, size), here.count(SEGMENTS, block, 1);
    return block;
  }

  static void split(Memory& here, Block* block, size_t bytes) {
    size_t left = block->bytes - bytes;
    if (block->large ? left <= mib : left < 512) return;
    auto rest = new Block{block->start + bytes, left, 0, block->device, block->large, block->stream, false, block, block->after};
    if (rest->after) rest->after->before = rest;
    block->after = rest, block->bytes = bytes;
    shelve(here, rest);
  }

  static Block* joined(Memory& here, Block* left, Block* right) {
    unshelve(here, left), unshelve(here, right);  // one of them is on the shelf
    left->bytes += right->bytes, left->after = right->after;
    if (left->after) left->after->before = left;
    delete right;
    return left;
  }
};

// Never destroyed: tensors may outlive everything.
inline Caching& caching = *new Caching();
inline void Caching::release(void* start) {
  if (start) caching.free(start);
}

}  // namespace fake
