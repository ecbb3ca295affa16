#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"

namespace ddp::train::gpu {

/// What a check found; each line is a name, a figure and whether it is within its limit.
class CheckLog {
 public:
  /// `limit`: the largest figure that is good.
  void add(std::string name, double figure, double limit) {
    all_.push_back({std::move(name), figure, limit});
  }
  /// A figure to report.
  void record(std::string name, double figure) { all_.push_back({std::move(name), figure, kNone}); }
  /// A call that failed.
  void failed(const Error& error) { errors_.push_back(error.text); }

  bool all_good() const;
  /// One line.
  std::string json(const std::string& check) const;

 private:
  static constexpr double kNone = -1;
  struct Finding {
    std::string name;
    double figure;
    double limit;
    bool good() const { return limit == kNone || figure <= limit; }  // a nan is not
  };
  std::vector<Finding> all_;
  std::vector<std::string> errors_;
};

struct GpuCheck {
  const char* name;
  void (*run)(CheckLog&);
};
/// Those of this program.
std::span<const GpuCheck> all_checks();

}  // namespace ddp::train::gpu
