#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace ddp::train {

enum class Dtype : std::uint8_t { kFloat32, kFloat64 };

struct Options {
  std::string data = "/usr/share/datasets/fashion-mnist";  ///< a directory, or "synthetic"
  int epochs = 1;
  int batch_size = 100;  ///< per rank
  double lr = 0.01;
  double momentum = 0.9;
  std::int64_t seed = 0;
  std::size_t limit = 0;  ///< training images over all ranks; 0: all
  Dtype dtype = Dtype::kFloat32;
  int log_interval = 50;  ///< steps between two progress lines
  std::chrono::milliseconds comm_timeout{60'000};
};

struct ParsedOptions {
  std::optional<Options> options;  ///< empty: help or mistakes were printed, and the program is to end with
  int exit_code = 0;               ///< 0 after --help and --version, 2 after mistakes
};

ParsedOptions parse_options(int argc, const char* const* argv);

}  // namespace ddp::train
