# The toolchain of the preset "aarch64": the distribution's cross compiler (docs/decisions/0027-packages.md). The agent needs only
# headers that are the same for each machine, and the compiler finds these in /usr/include, behind its own C library's.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
# The project looks for the libraries of all programs. It finds this machine's, and the agent links none of them.
execute_process(COMMAND gcc -print-multiarch OUTPUT_VARIABLE host OUTPUT_STRIP_TRAILING_WHITESPACE)
set(CMAKE_PREFIX_PATH /usr/lib/${host}/cmake)
set(CMAKE_LIBRARY_PATH /usr/lib/${host})
