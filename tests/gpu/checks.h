#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"

namespace ddp::train::gpu {

/// The results of a check: figures with a name and an optional limit, and failed calls.
class CheckLog {
 public:
  /// `limit` is the largest figure that passes.
  void add(std::string name, double figure, double limit) {
    all_.push_back({std::move(name), figure, limit});
  }
  /// Adds a figure without a limit.
  void record(std::string name, double figure) { all_.push_back({std::move(name), figure, kNone}); }
  /// Adds a failed call, with which the check fails.
  void failed(const Error& error) { errors_.push_back(error.text); }

  bool all_good() const;
  /// Returns the results as one line.
  std::string json(const std::string& check) const;

 private:
  static constexpr double kNone = -1;
  struct Finding {
    std::string name;
    double figure;
    double limit;
    bool good() const { return limit == kNone || figure <= limit; }  // false for a NaN
  };
  std::vector<Finding> all_;
  std::vector<std::string> errors_;
};

struct GpuCheck {
  const char* name;
  void (*run)(CheckLog&);
};
/// Returns the checks of this program, which defines them in its own source file.
std::span<const GpuCheck> all_checks();

}  // namespace ddp::train::gpu
