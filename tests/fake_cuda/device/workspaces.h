// Memory that kernels take besides their results: cuBLAS's workspace, which a thread's first product takes and which is
// kept, so that the thread in which backward runs has its own; and a convolution's, given back as it returns.
#pragma once

#include "allocator.h"

#include <set>
#include <utility>
#include <vector>

namespace fake {

inline std::atomic<int64_t> workspace_bytes{8519680}, scratch_bytes{0};
inline std::mutex handles;
inline std::vector<DataPtr*> spare_workspaces[MOST_DEVICES];

struct Handles;
inline std::set<Handles*> threads;

// Given on to the next thread as this one ends.
struct Handles {
  DataPtr* workspaces[MOST_DEVICES] = {};
  Handles() {
    std::lock_guard<std::mutex> hold(handles);
    threads.insert(this);
  }
  ~Handles() {
    std::lock_guard<std::mutex> hold(handles);
    threads.erase(this);
    for (int index = 0; index < MOST_DEVICES; index++)
      if (workspaces[index]) spare_workspaces[index].push_back(workspaces[index]);
  }
};

inline void want_workspace() {
  static thread_local Handles mine;
  std::lock_guard<std::mutex> hold(handles);
  auto& workspace = mine.workspaces[current_device];
  if (workspace || !workspace_bytes) return;
  auto& spare = spare_workspaces[current_device];
  if (spare.empty()) workspace = new DataPtr(caching.allocate(workspace_bytes));
  else workspace = spare.back(), spare.pop_back();
}

// As torch's `_cuda_clearCublasWorkspaces`: all threads give theirs back, and take new ones when they next need them.
inline void forget_workspaces() {
  std::lock_guard<std::mutex> hold(handles);
  for (auto* thread : threads)
    for (auto& workspace : thread->workspaces) delete std::exchange(workspace, nullptr);
  for (auto& spare : spare_workspaces) {
    for (auto* each : spare) delete each;
    spare.clear();
  }
}

}  // namespace fake
