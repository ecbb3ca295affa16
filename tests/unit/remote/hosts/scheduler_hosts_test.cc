#include "remote/hosts/hostfile.h"

#include "tests/support/catch.h"

using ddp::remote::Host;
using ddp::remote::Validated;
using Texts = std::vector<std::string>;

namespace {

// Returns "gpu01:8 gpu02:8 login", or the errors.
std::string shown(const Validated<std::vector<Host>>& hosts) {
  std::string text;
  if (!hosts) {
    for (const auto& diagnostic : hosts.error().list)
      text += (text.empty() ? "" : "\n") + to_text(diagnostic);
    return text;
  }
  for (const Host& host : *hosts)
    text += (text.empty() ? "" : " ") + host.name + (host.slots ? ':' + std::to_string(*host.slots) : "");
  return text;
}

std::string slurm(const std::string& nodes, const std::string& tasks = "", const std::string& gpus = "",
                  const std::string& on_node = "") {
  return shown(ddp::remote::slurm_hosts({nodes, tasks, gpus, on_node}));
}

}  // namespace

TEST_CASE("Node lists of Slurm are expanded") {
  struct Row {
    std::string text;
    Texts names;
  };
  const std::vector<Row> rows = {
      {"gpu1", {"gpu1"}},
      {"gpu[01-03,07],login", {"gpu01", "gpu02", "gpu03", "gpu07", "login"}},
      {"a[8-10],b[08-10]", {"a8", "a9", "a10", "b08", "b09", "b10"}},
      {"rack[1-2]n[3-4]", {"rack1n3", "rack1n4", "rack2n3", "rack2n4"}},
      {"dgx-[001,100]-ib.cluster", {"dgx-001-ib.cluster", "dgx-100-ib.cluster"}},
  };
  for (const Row& row : rows) {
    CAPTURE(row.text);
    const auto names = ddp::remote::expand_node_list(row.text, "LIST");
    REQUIRE(names.has_value());
    CHECK(*names == row.names);
  }
  for (const char* wrong : {"", "gpu[01-03", "gpu[3-1]", "a,,b", "a b", "-x", "gpu[]", "a:4", "root@a"}) {
    CAPTURE(wrong);
    CHECK_FALSE(ddp::remote::expand_node_list(wrong, "LIST").has_value());
  }
}

TEST_CASE("Task counts of Slurm are expanded") {
  CHECK(*ddp::remote::expand_counts("2(x3),1", "T") == std::vector<int>{2, 2, 2, 1});
  CHECK(*ddp::remote::expand_counts("8", "T") == std::vector<int>{8});
  for (const char* wrong : {"", "x", "2(x", "2(x)", "2(x0)", "0", "2,,1", "2(x3)1", "2(x999999999)"}) {
    CAPTURE(wrong);
    CHECK_FALSE(ddp::remote::expand_counts(wrong, "T").has_value());
  }
}

TEST_CASE("Slots of a Slurm job") {
  CHECK(slurm("n[1-4]", "2(x3),1") == "n1:2 n2:2 n3:2 n4:1");
  CHECK(slurm("n[1-2]", "4(x2)", "8") == "n1:4 n2:4");
  // One task per node means one launcher per node: the number of GPUs gives the slots, if it is known.
  CHECK(slurm("n[1-2]", "1(x2)", "a100:8") == "n1:8 n2:8");
  CHECK(slurm("n[1-2]", "1(x2)", "a100:2,v100:1(S:0-1)") == "n1:3 n2:3");
  CHECK(slurm("n[1-2]", "1(x2)", "", "4") == "n1:4 n2:4");
  CHECK(slurm("n[1-2]", "1(x2)") == "n1 n2");
  CHECK(slurm("n[1-2]") == "n1 n2");
}

TEST_CASE("Inconsistent values of a Slurm job are reported") {
  CHECK(slurm("n[1-3]", "2(x2)") ==
        "SLURM_TASKS_PER_NODE: 2(x2) is for 2 nodes, but SLURM_JOB_NODELIST names 3; the variables belong to "
        "different jobs or steps");
  CHECK(slurm("n1", "two") == "SLURM_TASKS_PER_NODE: \"two\" is not a count like 2 or 2(x3)");
  CHECK(slurm("n1", "1", "many") == "SLURM_GPUS_PER_NODE: \"many\" is not a number of GPUs");
  CHECK(slurm("n1,N1") == "SLURM_JOB_NODELIST: host N1 is named twice");
  CHECK(slurm("n1,n1") == "SLURM_JOB_NODELIST: host n1 is named twice");
  CHECK(slurm("n1,n[2").starts_with("SLURM_JOB_NODELIST, column "));
}

TEST_CASE("Hosts repeated once per slot are counted") {
  using ddp::remote::repeated_hosts;
  CHECK(shown(repeated_hosts("a\na\nb\n\na\n", "nodes")) == "a:3 b:1");
  CHECK(shown(repeated_hosts("a\r\nb\r\n", "nodes")) == "a b");
  CHECK(shown(repeated_hosts("a extra words\nb\nb", "nodes")) == "a:1 b:2");
  CHECK(shown(repeated_hosts("\n \n", "nodes")) == "nodes: it lists no hosts");
  CHECK(shown(repeated_hosts("a\nb;rm\n", "nodes")) == "nodes:2: \"b;rm\" is not the name of a host");
  CHECK(shown(ddp::remote::parse_repeated_hosts("a a b", "LSB_HOSTS")) == "a:2 b:1");
  CHECK(shown(repeated_hosts("a slots=2\nb slots=1\na\n", "nodes")) == "a:3 b:1");
  for (const char* misbehaved : {"slots=0", "slots=x", "slots=", "port=22", "slots = 2"}) {
    CAPTURE(misbehaved);
    const std::string word = std::string(misbehaved) == "slots = 2" ? "=" : misbehaved;
    CHECK(shown(repeated_hosts("a\nb " + std::string(misbehaved) + "\n", "nodes")) ==
          "nodes:2: \"" + word +
              "\" is not allowed in a scheduler's list of hosts; for a hostfile use --hostfile");
  }
}

TEST_CASE("Hosts with their slot counts are read") {
  CHECK(shown(ddp::remote::parse_host_counts("a 4 b 8 a 1", "LSB_MCPU_HOSTS")) == "a:5 b:8");
  CHECK(shown(ddp::remote::parse_host_counts("a 4 b", "LSB_MCPU_HOSTS")) ==
        "LSB_MCPU_HOSTS: no number of slots after b");
  CHECK(shown(ddp::remote::grid_engine_hosts("a 4 all.q@a UNDEFINED\nb 2 all.q@b <NULL>\na 1 x@a U\n",
                                             "pe")) == "a:5 b:2");
  CHECK(shown(ddp::remote::grid_engine_hosts("a\n", "pe")) == "pe:1: no number of slots after a");
}
