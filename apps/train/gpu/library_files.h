#pragma once

#include <functional>
#include <string>
#include <vector>

namespace ddp::train {

/// Returns the files of a CUDA library that exist outside the loader's paths: in the CUDA toolkit (CUDA_HOME,
/// CUDA_PATH, /usr/local/cuda), in lib of CONDA_PREFIX, then in the Python wheels of VIRTUAL_ENV,
/// CONDA_PREFIX, of the python3 in PATH, and in HOME/.local. `name`: of the file; `wheel_folders`: inside
/// site-packages. `get` is std::getenv outside tests.
std::vector<std::string> library_files(const std::string& name, const std::vector<std::string>& wheel_folders,
                                       const std::function<const char*(const char*)>& get);

}  // namespace ddp::train
