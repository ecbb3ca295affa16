#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "launcher/report/job_progress.h"

namespace ddp::launcher {

/// Writes the progress of a job as TensorBoard's event file (sans-IO): records of TFRecord, each with an
/// Event of tensorflow/core/util/event.proto. Scalars: train/loss, train/seconds_per_step, train/goodput.
class TensorBoardEvents {
 public:
  /// Returns the bytes to append: usually one record for each new step, at first also that of the file's
  /// version; empty: all ranks have completed no further step. When steps are repeated after a restart, a
  /// record makes TensorBoard forget the points from there on.
  std::string add(const JobProgress::Figures& figures, std::chrono::system_clock::time_point time);

 private:
  std::optional<std::uint64_t> step_;  ///< of the last record
};

}  // namespace ddp::launcher
