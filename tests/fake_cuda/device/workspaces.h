// Memory that kernels take besides their results: cuBLAS's workspace, which a thread's first product takes and which is
// kept, so that the thread in which backward runs has its own; cuBLASLt's, which its first product with a bias takes, so
// that this thread has one only where a replay runs in it; and a convolution's, given back as it returns.
#pragma once

#include "allocator.h"

#include <array>
#include <set>
#include <utility>
#include <vector>

namespace fake {

// Of cuBLAS, and of cuBLASLt, whose products add a bias.
enum Library { PLAIN, BIASED, N_LIBRARIES };
inline std::atomic<int64_t> workspace_bytes[N_LIBRARIES] = {8519680, 0}, scratch_bytes{0};
inline std::mutex& handles = *new std::mutex();
using Workspaces = DataPtr* [N_LIBRARIES][MOST_DEVICES];
using Spare = std::array<std::array<std::vector<DataPtr*>, MOST_DEVICES>, N_LIBRARIES>;
// Never destroyed: autograd's threads may end after everything.
inline Spare& spare_workspaces = *new Spare();

struct Handles;
inline std::set<Handles*>& threads = *new std::set<Handles*>();

// Given on to the next thread as this one ends.
struct Handles {
  Workspaces workspaces = {};
  Handles() {
    std::lock_guard<std::mutex> hold(handles);
    threads.insert(this);
  }
  ~Handles() {
    std::lock_guard<std::mutex> hold(handles);
    threads.erase(this);
    for (int library = 0; library < N_LIBRARIES; library++)
      for (int index = 0; index < MOST_DEVICES; index++)
        if (auto* mine = workspaces[library][index]) spare_workspaces[library][index].push_back(mine);
  }
};

inline void want_workspace(Library library) {
  static thread_local Handles mine;
  std::lock_guard<std::mutex> hold(handles);
  auto& workspace = mine.workspaces[library][current_device];
  if (workspace || !workspace_bytes[library]) return;
  auto& spare = spare_workspaces[library][current_device];
  if (spare.empty()) workspace = new DataPtr(caching.allocate(workspace_bytes[library]));
  else workspace = spare.back(), spare.pop_back();
}

// As torch's `_cuda_clearCublasWorkspaces`: all threads give theirs back, and take new ones when they next need them.
inline void forget_workspaces() {
  std::lock_guard<std::mutex> hold(handles);
  for (auto* thread : threads)
    for (auto& of_library : thread->workspaces)
      for (auto& workspace : of_library) delete std::exchange(workspace, nullptr);
  for (auto& of_library : spare_workspaces)
    for (auto& spare : of_library) {
      for (auto* each : spare) delete each;
      spare.clear();
    }
}

}  // namespace fake
