#pragma once

#include <atomic>

namespace ddp {

/// The interface of the fake NCCL (fake_nccl.cc) for tests whose ranks are threads of the test.
struct FakeNcclSettings {
  std::atomic<int> version = 22809;
  std::atomic<bool> init_hangs = false;        ///< no communicator becomes ready
  std::atomic<int> init_fails = 0;             ///< later result of an init; 0: success
  std::atomic<bool> all_reduces_hang = false;  ///< no all-reduce that has not begun completes
  std::atomic<int> remote_error = 6;  ///< error at ranks whose peer has aborted; 0: none, as over NVLink
  std::atomic<int> abort_hangs =
      0;                        ///< calls of ncclCommAbort do not return until 0 again; its setter notifies
  std::atomic<int> graphs = 0;  ///< graphs that hold a communicator: none ends before it is 0
  std::atomic<bool> registers = true;  ///< false: no memory can be registered
  std::atomic<int> blocks = 0;         ///< allocated blocks of memory
  std::atomic<int> registrations = 0;  ///< active registrations
  std::atomic<int> errors = 0;         ///< releases in the wrong order
  std::atomic<int> aborted = 0;        ///< number of calls, as below
  std::atomic<int> destroyed = 0;
  std::atomic<int> ids = 0;
  std::atomic<int> ids_of_last_init = 0;
};

}  // namespace ddp

extern "C" ddp::FakeNcclSettings* fake_nccl_settings();
