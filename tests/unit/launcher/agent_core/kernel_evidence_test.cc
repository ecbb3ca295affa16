#include "launcher/agent_core/machine_text.h"

#include "tests/support/catch.h"

using namespace ddp::launcher;

TEST_CASE("a record of /dev/kmsg") {
  const auto line = parse_kernel_line(
      "3,1234,5445602881,-;Memory cgroup out of memory: Killed process 4242 (python3)\n SUBSYSTEM=x\n "
      "DEVICE=y\n");
  REQUIRE(line);
  CHECK(line->time_us == 5'445'602'881);
  CHECK(line->text == "Memory cgroup out of memory: Killed process 4242 (python3)");
  CHECK(parse_kernel_line("6,1,2,-,caller=T1;a;b")->text == "a;b");
  CHECK(parse_kernel_line("6,1,2,-;")->text.empty());
  for (const char* text : {"", ";", "6;x", "6,1;x", "6,1,x,-;x", "no record"}) {
    INFO(text);
    CHECK_FALSE(parse_kernel_line(text));
  }
}

TEST_CASE("the process that the OOM killer killed") {
  const auto machine = parse_oom_victim(
      "Out of memory: Killed process 813 (stress) total-vm:8393664kB, anon-rss:7950964kB, file-rss:4kB, "
      "shmem-rss:0kB, UID:0 pgtables:15700kB oom_score_adj:0");
  REQUIRE(machine);
  CHECK(machine->pid == 813);
  CHECK_FALSE(machine->cgroup);
  const auto group = parse_oom_victim(
      "Memory cgroup out of memory: Killed process 22172 (python3) total-vm:1060948kB, anon-rss:202364kB");
  REQUIRE(group);
  CHECK(group->pid == 22'172);
  CHECK(group->cgroup);
  const auto summary = parse_oom_victim(
      "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/"
      "ddp,task_memcg=/ddp,"
      "task=python3,pid=22172,uid=0");
  REQUIRE(summary);
  CHECK(summary->pid == 22'172);
  CHECK(summary->cgroup);
  const auto global =
      parse_oom_victim("oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),task=a,pid=7,uid=0");
  REQUIRE(global);
  CHECK_FALSE(global->cgroup);
  for (const char* text :
       {"oom_reaper: reaped process 22172 (python3), now anon-rss:0kB", "Killed process x",
        "oom-kill:constraint=CONSTRAINT_NONE,uid=0", "python3 invoked oom-killer: gfp_mask=0xcc0"}) {
    INFO(text);
    CHECK_FALSE(parse_oom_victim(text));
  }
}

TEST_CASE("Xid lines of the NVIDIA driver") {
  CHECK(is_xid_line(
      "NVRM: Xid (PCI:0000:65:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."));
  CHECK(is_xid_line(
      "NVRM: Xid (PCI:0000:c1:00): 31, pid=1234, name=python3, Ch 00000008, intr 10000000. MMU Fault"));
  CHECK_FALSE(is_xid_line("NVRM: loading NVIDIA UNIX x86_64 Kernel Module"));
  const char* fault = "NVRM: Xid (PCI:0000:c1:00): 31, pid=1234, name=python3, Ch 00000008";
  CHECK(xid_names(fault, 1234));
  CHECK_FALSE(xid_names(fault, 123));
  CHECK_FALSE(xid_names(fault, 12345));
  CHECK(xid_names("NVRM: Xid (PCI:0000:c1:00): 79, pid='1234', name=python3", 1234));
  CHECK_FALSE(xid_names("NVRM: Xid (PCI:0000:c1:00): 79, pid='<unknown>', name=<unknown>", 0));
  CHECK_FALSE(xid_names("NVRM: Xid (PCI:0000:c1:00): 48, DBE", 1234));
}

TEST_CASE("the number of OOM kills in a group") {
  CHECK(parse_oom_kills("low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n") == 2U);
  CHECK(parse_oom_kills("oom_kill_disable 0\nunder_oom 0\noom_kill 5\n") == 5U);
  CHECK_FALSE(parse_oom_kills("oom_kill_disable 0\nunder_oom 0\n"));
  CHECK_FALSE(parse_oom_kills(""));
  CHECK_FALSE(parse_oom_kills("oom_kill x\n"));
}
