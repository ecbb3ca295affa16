#include "apps/ddplaunchd/commands.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "base/find_program.h"
#include "base/trusted_path.h"

namespace ddp {

int run_listener(char** argv) {
  const auto directory = own_directory();
  if (!directory) {
    std::fprintf(stderr, "ddplaunchd: %s\n", directory.error().text.c_str());
    return 110;
  }
  const std::string program = companion_program(*directory, "ddplaunch-listen");
  if (const std::string why = distrust_companion(program); !why.empty()) {
    std::fprintf(stderr, "ddplaunchd: %s is not executed: %s\n", program.c_str(), why.c_str());
    return 110;
  }
  ::execv(program.c_str(), argv);
  std::fprintf(stderr, "ddplaunchd: cannot execute %s: %s; --listen and --new-token need this program\n",
               program.c_str(), std::strerror(errno));
  return 110;
}

}  // namespace ddp
