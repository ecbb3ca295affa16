#include "apps/ddplaunch/options/job_options.h"

#include "tests/support/catch.h"
#include "tests/unit/apps/ddplaunch/options/fake_process_context.h"

using ddp::launcher::JobSpec;
using ddp::launcher::LauncherKind;
using ddp::test::FakeContext;
using ddp::test::Texts;

TEST_CASE("--launcher daemon with its port and token") {
  const JobSpec spec = FakeContext().spec({"--host", "a,b port=4000", "--launcher", "daemon", "--daemon-port",
                                           "5000", "--token-file", "/run/token", "w"});
  CHECK(spec.launcher == LauncherKind::kDaemon);
  CHECK(spec.daemon_port == 5000);
  CHECK(spec.token_file == "/run/token");
  CHECK_FALSE(spec.push);
  REQUIRE(spec.hosts.size() == 2);
  CHECK(spec.hosts[1].port == 4000);
  const JobSpec usual = FakeContext().spec({"--host", "a", "--launcher=daemon", "w"});
  CHECK(usual.daemon_port == 0);
  CHECK(usual.token_file.empty());
}

TEST_CASE("Daemons need hosts and start no wrapper") {
  CHECK(FakeContext().errors({"--launcher", "daemon", "w"}) ==
        Texts{"ddplaunch: --launcher daemon needs hosts: --hostfile FILE or --host LIST"});
  CHECK(
      FakeContext().errors({"--host", "a", "--launcher", "daemon", "--wrapper", "docker exec -i x",
                            "--daemon-port", "0", "w"}) ==
      Texts{
          "ddplaunch: --daemon-port 0: give a whole number from 1 to 65535",
          "ddplaunch: a daemon starts no wrapper (host a): run ddplaunchd --listen inside the container, or "
          "use --launcher ssh"});
}

TEST_CASE("An SSH key of a hostfile is reported as unused") {
  FakeContext world;
  world.files["hosts"] = "ann@a slots=2\nb slots=2\n";
  CHECK(world.job({"--hostfile", "hosts", "--launcher", "daemon", "w"}).notes ==
        Texts{"ddplaunch: user, identity and jump of the hosts have no effect with --launcher daemon"});
}
