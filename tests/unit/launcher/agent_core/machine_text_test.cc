#include "launcher/agent_core/machine_text.h"

#include <chrono>
#include <string>

#include "tests/support/catch.h"

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;

TEST_CASE("the CPU time of a machine is that of its first line, without idle time and waits for disks") {
  UsageCounters counters;
  read_proc_stat(
      "cpu  100 20 30 5000 400 5 6 7 50 0\ncpu0 50 10 15 2500 200 2 3 3 0 0\ncpu1 50 10 15 2500 200 3 3 4 0 "
      "0\n"
      "intr 8423 0 9\nctxt 77\n",
      10ms, counters);
  CHECK(counters.cpu == 1680ms);
  CHECK(counters.steal == 70ms);
  CHECK(counters.cpus == 2);
  read_proc_stat("", 10ms, counters);  // an unreadable file changes nothing
  CHECK(counters.cpus == 2);
}

TEST_CASE("memory that the kernel could free is not used") {
  UsageCounters counters;
  read_meminfo("MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    700 kB\n", counters);
  CHECK(counters.memory == 1'024'000);
  CHECK(counters.memory_used == 307'200);
  read_meminfo("MemTotal: 10 kB\nMemAvailable: 11 kB\n", counters);
  CHECK(counters.memory_used == 0);
}

TEST_CASE("bytes of interfaces and disks") {
  const auto net = read_net_dev(
      "Inter-|   Receive                                                |  Transmit\n"
      " face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs\n"
      "    lo: 999 1 0 0 0 0 0 0 999 1 0 0 0 0 0 0\n"
      "  eth0:4096 12 0 0 0 0 0 0 512 3 0 0 0 0 0 0\n");
  REQUIRE(net.size() == 1);
  CHECK(net.at("eth0").in == 4096);
  CHECK(net.at("eth0").out == 512);
  const auto disks = read_diskstats(" 259 0 nvme0n1 10 0 8 5 20 0 16 9 0 7 14\n 7 0 loop0\n");
  REQUIRE(disks.size() == 1);
  CHECK(disks.at("nvme0n1").in == 4096);
  CHECK(disks.at("nvme0n1").out == 8192);
}

TEST_CASE("texts about the job") {
  CHECK(read_group_cpu("usage_usec 2500000\nuser_usec 2000000\n") == 2500ms);
  CHECK(read_group_cpu("") == 0ms);
  CHECK(read_private_memory("Name:\tpython3\nVmRSS:\t 90 kB\nRssAnon:\t 50 kB\nRssFile:\t 40 kB\n") ==
        51'200);
  CHECK(device_numbers("0,2") == std::vector<std::uint32_t>{0, 2});
  CHECK(device_numbers("").empty());
  CHECK(device_numbers("0,GPU-4fe1").empty());
}

TEST_CASE("what slows a node down") {
  CHECK(read_pressure("some avg10=0.00 avg60=1.52 avg300=0.10 total=12345\nfull avg10=0.00 total=99\n") ==
        12345us);
  CHECK(read_pressure("") == 0us);
  CHECK(read_net_errors("head\n  eth0:4096 12 3 0 0 0 0 0 512 3 4 0 0 0 0 0\n  lo: 1 1 0\n") == 7);
}

TEST_CASE("two moments make rates") {
  UsageCounters before, now;
  before.steal = 1s;
  now.steal = 2s;
  now.memory_stall = 500ms;
  before.network_errors = 5;
  now.network_errors = 12;
  before.at = 10s;
  now.at = 15s;
  now.cpus = 4;
  now.memory = 1000;
  now.memory_used = 600;
  now.job_memory = 500;
  before.cpu = 100s;
  now.cpu = 107500ms;
  before.network = {1'000, 5'000};
  now.network = {11'000, 4'000};  // an interface was removed
  before.disk = {0, 0};
  now.disk = {500, 50};
  before.infiniband = {7, 7};
  now.infiniband = {5'000'000'007, 7};
  rendezvous::NodeSample sample = usage_between(before, now);
  CHECK(sample.cpus == 4);
  CHECK(sample.cpu_milli == 1500);
  CHECK(sample.memory == 1000);
  CHECK(sample.memory_used == 600);
  CHECK(sample.job_memory == 500);
  CHECK(sample.job_cpu_milli == 0);
  CHECK(sample.network_in == 2'000);
  CHECK(sample.network_out == 0);
  CHECK(sample.disk_read == 100);
  CHECK(sample.steal_milli == 200);
  CHECK(sample.memory_stall == 100);
  CHECK(sample.network_errors == 7);
  CHECK(sample.disk_written == 10);
  CHECK(sample.infiniband_in == 1'000'000'000);

  before.group_cpu = 1s;
  now.group_cpu = 16s;
  now.process_cpu[{7, 1}] = 100s;  // the group counts all of them
  CHECK(usage_between(before, now).job_cpu_milli == 3000);
}

TEST_CASE("without a group the processes of the job are summed, however they come and go") {
  UsageCounters before, now;
  before.at = 0s;
  now.at = 5s;
  before.process_cpu = {{{10, 1}, 100s}, {{11, 1}, 50s}};
  // One goes on, one has ended, one is new, one was found late, and one has the number of another.
  now.process_cpu = {{{10, 1}, 105s}, {{12, 9}, 1s}, {{13, 2}, 3600s}, {{11, 8}, 500ms}};
  CHECK(usage_between(before, now).job_cpu_milli == (5'000 + 1'000 + 5'000 + 500) / 5);
}

TEST_CASE("the lines of ddplaunch-nvml in any pieces") {
  const std::string round =
      "sample\t0\t43\t12\t80\t412000\t60\t1980\t64\t0\nsample\t1\t101\t13\t80\t0\t0\t0\t0\t79\nend\n";
  GpuSampleLines lines;
  for (const char byte : round.substr(0, round.size() - 1))
    lines.add(std::string_view(&byte, 1));
  CHECK(lines.gpus().empty());  // the round is not complete
  lines.add("\nsample\t0\t9");
  REQUIRE(lines.gpus().size() == 2);
  const rendezvous::GpuSample& first = lines.gpus()[0];
  CHECK(first.busy == 43);
  CHECK(first.memory_used == 12);
  CHECK(first.memory == 80);
  CHECK(first.power_mw == 412'000);
  CHECK(first.celsius == 60);
  CHECK(first.clock_mhz == 1980);
  CHECK(first.throttle == 64);
  CHECK(lines.gpus()[1].busy == 100);
  CHECK(lines.gpus()[1].xid == 79);

  GpuSampleLines some({1});
  some.add("noise\nsample\t0\nend\n" + round);
  REQUIRE(some.gpus().size() == 1);
  CHECK(some.gpus()[0].index == 1);
}

TEST_CASE("a program that prints anything else costs no memory") {
  GpuSampleLines lines;
  for (int i = 0; i < 1'000; ++i)
    lines.add(std::string(1'000, 'x'));
  for (int i = 0; i < 1'000; ++i)
    lines.add("sample\t0\t1\t1\t1\t1\t1\t1\t1\t1\n");
  lines.add("end\n");
  CHECK(lines.gpus().size() <= 64);
}

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

TEST_CASE("the lines of ddplaunch-nvml") {
  const GpuFacts facts = read_nvml_lines(
      "version\tNCCL\t2.20.5\n"
      "gpu\tNVIDIA H100\t85899345920\t1024\n"
      "process\t0\t4711\t2048\n"
      "gpu\tNVIDIA H100\t85899345920\t85899345920\n"
      "version\tdriver\t550.54 \r\n"
      "something\tof a later release\n");
  REQUIRE(facts.gpus.size() == 2);
  CHECK(facts.gpus[0].name == "NVIDIA H100");
  CHECK(facts.gpus[0].memory == 85'899'345'920);
  CHECK(facts.gpus[0].memory_free == 1024);
  REQUIRE(facts.processes.size() == 1);
  CHECK(facts.processes[0].pid == 4711);
  CHECK(facts.processes[0].memory == 2048);
  CHECK(facts.versions == rendezvous::Pairs{{"NCCL", "2.20.5"}, {"driver", "550.54"}});
  CHECK(facts.trouble.empty());
  CHECK(read_nvml_lines("trouble\tthe driver is gone\n").trouble == "the driver is gone");
  CHECK(read_nvml_lines("").gpus.empty());
}

TEST_CASE("malformed lines are skipped") {
  const GpuFacts facts = read_nvml_lines("gpu\tA\nprocess\t9\t1\t1\nprocess\tx\ty\tz\n\n\t\t\t\ngpu\n");
  CHECK(facts.gpus.empty());
  CHECK(facts.processes.empty());
}

TEST_CASE("memory that is not known counts as 0, and a process needs a known GPU") {
  const GpuFacts nvml = read_nvml_lines("gpu\tA\t?\t?\nprocess\t0\t7\t?\nprocess\t1\t8\t1\n");
  REQUIRE(nvml.gpus.size() == 1);
  CHECK(nvml.gpus[0].memory == 0);
  CHECK(nvml.gpus[0].memory_free == 0);
  REQUIRE(nvml.processes.size() == 1);
  CHECK(nvml.processes[0].memory == 0);
  const GpuFacts smi = read_smi("0, GPU-aa, A, [N/A], [N/A], 535\n", "");
  REQUIRE(smi.gpus.size() == 1);
  CHECK(smi.gpus[0].memory == 0);
  CHECK(smi.gpus[0].memory_free == 0);
}

TEST_CASE("a broken driver's list of GPUs ends at 1024") {
  std::string nvml;
  std::string smi;
  for (int i = 0; i < 1025; ++i) {
    nvml += "gpu\tA\t1\t1\n";
    smi += std::to_string(i) + ", GPU, A, 1, 1, 535\n";
  }
  CHECK(read_nvml_lines(nvml).gpus.size() == 1024);
  CHECK(read_smi(smi, "").gpus.size() == 1024);
}

TEST_CASE("nvidia-smi's tables") {
  const GpuFacts facts = read_smi(
      "0, GPU-aa, NVIDIA A100-SXM4-40GB, 40960, 40000, 535.104.05\n"
      "1, GPU-bb, NVIDIA A100-SXM4-40GB, 40960, 10, 535.104.05\n",
      "GPU-bb, 123, 39000\nGPU-bb, 124, [N/A]\nGPU-zz, 125, 1\n");
  REQUIRE(facts.gpus.size() == 2);
  CHECK(facts.gpus[1].name == "NVIDIA A100-SXM4-40GB");
  CHECK(facts.gpus[1].memory == 40'960 * kMiB);
  CHECK(facts.gpus[1].memory_free == 10 * kMiB);
  CHECK(facts.versions == rendezvous::Pairs{{"driver", "535.104.05"}});
  REQUIRE(facts.processes.size() == 2);
  CHECK(facts.processes[0].gpu == 1);
  CHECK(facts.processes[1].memory == 0);
  CHECK(read_smi("NVIDIA-SMI has failed because it couldn't communicate with the driver\n", "").gpus.empty());
}

}  // namespace
}  // namespace ddp::launcher

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
