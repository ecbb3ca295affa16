#pragma once

#include <string>

namespace ddp::test {

/// Shows why a test case cannot run here. The program then exits with 77, which ctest shows as skipped.
void note_skip(const std::string& reason);

}  // namespace ddp::test

/// Ends the test case in whose body it stands. The case has the tag of what it needs ("[root]"), and its
/// ddp_test names that behind NEEDS, so that such cases are a ctest entry of their own. Catch2 v2 has no
/// SKIP.
#define SKIP_TEST(reason)         \
  do {                            \
    ddp::test::note_skip(reason); \
    return;                       \
  } while (false)
