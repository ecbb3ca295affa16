#pragma once

#include "apps/train/dataset.h"
#include "apps/train/options.h"
#include "apps/train/trainer.h"
#include "base/result.h"

namespace ddp::train {

/// Trains and tests as the options say (without contradiction()), and prints on stdout: rank 0 the progress,
/// every rank its weights' hash, rank 0 at last whether all are equal and the test accuracy. An error too
/// when the ranks' weights differ.
Result<> run_training(const Options& options, Communicators communicators, const DataSplit& data);

}  // namespace ddp::train
