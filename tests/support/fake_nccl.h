#pragma once

#include <atomic>

namespace ddp {

/// Plays NCCL for ranks that are threads of one process, on plain memory (fake_nccl.cc). What the library and
/// a test have in common.

/// The device's stream: how many operations in it are not done.
struct FakeStream {
  std::atomic<int> pending = 0;
};

struct FakeNcclSettings {
  std::atomic<int> version = 22809;
  std::atomic<bool> init_hangs = false;        ///< no communicator gets ready
  std::atomic<int> init_fails = 0;             ///< what an init says later, instead of success
  std::atomic<bool> all_reduces_hang = false;  ///< no all-reduce completes
  std::atomic<int> remote_error = 0;  ///< what ranks hear whose peer has aborted; 0: nothing, as over NVLink
  std::atomic<int> abort_hangs =
      0;  ///< calls of ncclCommAbort do not return until 0 again; its setter notifies
  std::atomic<int> graphs =
      0;  ///< that hold a communicator: none ends before it is 0; who takes one notifies
  std::atomic<bool> registers = true;  ///< else no memory can be registered
  std::atomic<int> blocks = 0;         ///< of memory that were not given back
  std::atomic<int> registrations = 0;  ///< that were not taken back
  std::atomic<int> errors = 0;         ///< memory or a communicator that went while memory was registered
  std::atomic<int> aborted = 0;        ///< what was called how often
  std::atomic<int> destroyed = 0;
  std::atomic<int> ids = 0;
  std::atomic<int> ids_of_last_init = 0;
};

}  // namespace ddp

extern "C" ddp::FakeNcclSettings* fake_nccl_settings();
