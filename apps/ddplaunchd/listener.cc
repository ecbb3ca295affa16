#include "apps/ddplaunchd/commands.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "apps/ddplaunchd/daemon_options.h"
#include "base/find_program.h"

namespace ddp {

bool is_for_listener(std::string_view word) {
  std::string name(word.substr(0, word.find('=')));
  std::replace(name.begin(), name.end(), '_', '-');
  const std::vector<Option> options = daemon_option_groups().front().options;
  return std::any_of(options.begin(), options.end(),
                     [&](const Option& option) { return option.names == name; });
}

int run_listener(char** argv) {
  const auto directory = own_directory();
  if (!directory) {
    std::fprintf(stderr, "ddplaunchd: %s\n", directory.error().text.c_str());
    return 110;
  }
  const std::string program = *directory + "/ddplaunch-listen";
  ::execv(program.c_str(), argv);
  std::fprintf(
      stderr,
      "ddplaunchd: cannot execute %s: %s; --listen and --new-token need this program beside ddplaunchd\n",
      program.c_str(), std::strerror(errno));
  return 110;
}

}  // namespace ddp
