#include "launcher/agent/node_job.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "tests/support/catch.h"

namespace ddp::launcher {

TEST_CASE("a script whose interpreter is missing is reported before it runs") {
  char name[] = "/tmp/ddplaunch-script-XXXXXX";
  REQUIRE(::mkdtemp(name) != nullptr);
  const std::string dir = name;
  const std::string script = dir + "/bad.sh";
  const auto trouble = [&](const std::string& text) {
    std::ofstream(script, std::ios::trunc) << text;
    return interpreter_trouble(script, {{"PATH", dir + "/none:/bin:/usr/bin"}}, dir);
  };
  for (const char* fine : {"#!/bin/sh\n", "#! /bin/sh -e\necho",
                           "\x7f"
                           "ELF",
                           "", "#!", "echo hi\n", "#!/usr/bin/env sh\n", "#!/usr/bin/env -S sh -e\n",
                           "#!/usr/bin/env -i sh\n", "#!/usr/bin/env A=b sh\n"}) {
    CAPTURE(fine);
    CHECK(trouble(fine).empty());
  }
  const std::string begin = "execute " + script + ": ";
  CHECK(trouble("#!/nosuch/interp\n") == begin +
                                             "No such file or directory: its first line names the "
                                             "interpreter /nosuch/interp, which does not exist");
  CHECK(trouble("#!/bin/sh\r\n") == begin +
                                        "No such file or directory: its first line has a Windows line "
                                        "ending; save the file with Unix line endings");
  CHECK(trouble("#!/usr/bin/env nosuch\n") ==
        begin + "its first line asks env for 'nosuch', which is not in PATH");
  CHECK(trouble("#!/usr/bin/env sh -e\n") ==
        begin +
            "its first line asks env for 'sh -e', which is not in "
            "PATH (env takes the rest of the line as one word; use env -S)");
  CHECK(trouble("#!interp\n").find("names the interpreter interp, which does not exist") !=
        std::string::npos);
  std::ofstream(dir + "/interp") << "";
  CHECK(trouble("#!interp\n").empty());
  std::filesystem::remove_all(dir);
}

}  // namespace ddp::launcher
