#pragma once

#include <cuda_runtime_api.h>

#include <source_location>

#include "base/result.h"

namespace ddp::train {

/// What a call of the CUDA run time answered, as a Result: "device_stream.cc:20: cudaMalloc:
/// cudaErrorMemoryAllocation (out of memory)". Every call goes through here:
///
///   if (auto done = cuda_check(cudaMalloc(&data, bytes), "cudaMalloc"); !done) return done;
Result<> cuda_check(cudaError_t answer, const char* call,
                    std::source_location where = std::source_location::current());

/// The same of a question (cudaStreamQuery, cudaEventQuery): whether what was asked for is done.
Result<bool> cuda_is_done(cudaError_t answer, const char* call,
                          std::source_location where = std::source_location::current());

/// How many GPUs the run time sees, at least one. Without any, or without a driver, the error says what
/// cudaGetDeviceCount said: "cudaGetDeviceCount said cudaErrorNoDevice (no CUDA-capable device is detected)".
Result<int> count_gpus();

}  // namespace ddp::train
