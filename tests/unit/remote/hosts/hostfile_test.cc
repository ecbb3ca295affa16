#include "remote/hosts/hostfile.h"

#include <algorithm>

#include "tests/support/catch.h"

using ddp::remote::Diagnostic;
using ddp::remote::Host;
using ddp::remote::HostEntry;
using ddp::remote::kMaxDiagnostics;
using ddp::remote::parse_entry;
using ddp::remote::parse_host_list;
using ddp::remote::parse_hostfile;
using Texts = std::vector<std::string>;
using Env = std::vector<std::pair<std::string, std::string>>;

namespace {

std::vector<Host> hosts_of(const std::string& text) {
  auto parsed = parse_hostfile(text, "hosts");
  if (!parsed) {
    for (const Diagnostic& diagnostic : parsed.error().list)
      UNSCOPED_INFO(to_text(diagnostic));
  }
  REQUIRE(parsed.has_value());
  return *parsed;
}

Texts texts_of(const std::vector<Diagnostic>& diagnostics) {
  Texts texts;
  for (const Diagnostic& diagnostic : diagnostics)
    texts.push_back(to_text(diagnostic));
  return texts;
}

Texts errors_of(const std::string& text) {
  auto parsed = parse_hostfile(text, "hosts");
  REQUIRE_FALSE(parsed.has_value());
  return texts_of(parsed.error().list);
}

// Returns words "name:slots", or "name" for a host without slots.
std::string brief(const std::vector<Host>& hosts) {
  std::string text;
  for (const Host& host : hosts) {
    text += (text.empty() ? "" : " ") + host.name + (host.slots ? ':' + std::to_string(*host.slots) : "");
  }
  return text;
}

}  // namespace

TEST_CASE("Files of DeepSpeed, MPI and Horovod are read unchanged") {
  CHECK(brief(hosts_of("worker-1 slots=4\nworker-2 slots=8\n")) == "worker-1:4 worker-2:8");
  CHECK(brief(hosts_of("worker-1:4\nworker-2:8")) == "worker-1:4 worker-2:8");
  CHECK(brief(hosts_of("10.0.0.1\n10.0.0.2\n")) == "10.0.0.1 10.0.0.2");
  CHECK(brief(hosts_of("# Open MPI\naa slots=2 max_slots=4\nbb slots = 2   max-slots = 2 # both\n")) ==
        "aa:2 bb:2");
  CHECK(brief(hosts_of("aa cpu=2\nbb count=3\n")) == "aa:2 bb:3");
  for (const char* key : {"username", "user-name", "user_name"})
    CHECK(hosts_of("aa " + std::string(key) + "=me\n")[0].user == "me");
  // All spellings of PRRTE's scanner.
  for (const char* key : {"slots_max", "slots-max", "max_slots", "max-slots", "cpu_max", "cpu-max", "max_cpu",
                          "max-cpu", "count_max", "count-max", "max_count", "max-count"})
    CHECK(hosts_of("aa slots=2 " + std::string(key) + " = 4\n")[0].max_slots == 4);
}

TEST_CASE("Comments, blank lines, tabs, CR LF and a byte order mark") {
  CHECK(brief(hosts_of(
            "\xEF\xBB\xBF# all\r\n\r\n  gpu01\tslots=8 # first\r\n\t\r\ngpu02 slots=4#x\r\n   # end")) ==
        "gpu01:8 gpu02:4");
  CHECK(brief(hosts_of("gpu01#comment\ngpu02:2#comment slots=4x\n")) == "gpu01 gpu02:2");
}

TEST_CASE("Comments in C's form, as in Open MPI") {
  CHECK(brief(hosts_of("// all\n  //\ngpu01 slots=8 // first \x01\ngpu02 //\r\n")) == "gpu01:8 gpu02");
  CHECK(
      brief(hosts_of("/* a\n * b # \"\ngpu09\n**/\ngpu01 /* c */ slots=2 /* d *//* e */ // /*\n/**/gpu02")) ==
      "gpu01:2 gpu02");
  CHECK(brief(hosts_of("# /*\ngpu01\n")) == "gpu01");
  CHECK(hosts_of("gpu01 jump=ssh://gw chdir=//data env:A=a/*b env:B=\"x // /* \\\" // y\"")[0].env ==
        Env{{"A", "a/*b"}, {"B", "x // /* \" // y"}});
  CHECK(errors_of("/* \xC3\xA9 */ gpu01 slots=0") ==
        Texts{"hosts:1:21: slots=0: \"0\" is not a number of slots (a whole number from 1 to 65535)"});
  CHECK(errors_of("gpu01\n/* gpu02\n\n") == Texts{"hosts:2: the comment that begins here with /* has no */"});
}

TEST_CASE("Every key is read") {
  const Host host = hosts_of(
      "alice@gpu01 slots=8 port=2222 address=10.0.0.7 identity=~/.ssh/id_lab chdir=/data/x "
      "gpus=0,2 env:NCCL_DEBUG=INFO env:EMPTY= env:TEXT=\"a b#\\\"c\\\\\" max_slots=9 # end")[0];
  CHECK(host.name == "gpu01");
  CHECK(host.user == "alice");
  CHECK(host.slots == 8);
  CHECK(host.max_slots == 9);
  CHECK(host.port == 2222);
  CHECK(host.address == "10.0.0.7");
  CHECK(host.identity == "~/.ssh/id_lab");
  CHECK(host.chdir == "/data/x");
  CHECK(host.devices == Texts{"0", "2"});
  CHECK(host.env == Env{{"NCCL_DEBUG", "INFO"}, {"EMPTY", ""}, {"TEXT", "a b#\"c\\"}});
  CHECK(hosts_of("gpu01 user=bob")[0].user == "bob");
  CHECK(hosts_of("bob@lab.example@gpu01")[0].user == "bob@lab.example");
}

TEST_CASE("The location of a host is where it starts in the file") {
  const std::vector<Host> hosts = hosts_of("# one\n\n  gpu[1-2]\n");
  REQUIRE(hosts.size() == 2);
  CHECK(hosts[1].location.file == "hosts");
  CHECK(hosts[1].location.line == 3);
  CHECK(hosts[1].location.column == 3);
}

TEST_CASE("Ranges give every host the keys of the line") {
  const std::vector<Host> hosts = hosts_of("ops@gpu[01-03,20] slots=8 port=2200 env:A=1\nlast\n");
  CHECK(brief(hosts) == "gpu01:8 gpu02:8 gpu03:8 gpu20:8 last");
  CHECK(hosts[3].port == 2200);
  CHECK(hosts[3].user == "ops");
  CHECK(hosts[3].env == Env{{"A", "1"}});
  CHECK(brief(hosts_of("gpu[1-2]:4")) == "gpu1:4 gpu2:4");
  const std::vector<Host> addressed = hosts_of("gpu[1-3] address=10.0.0.[11-13]");
  CHECK(addressed[2].address == "10.0.0.13");
}

TEST_CASE("gpus= without slots gives as many slots") {
  CHECK(hosts_of("gpu01 gpus=0-3")[0].slots == 4);
  CHECK(hosts_of("gpu01 gpus=0-3 slots=2")[0].slots == 2);
}

TEST_CASE("IPv6") {
  CHECK(brief(hosts_of("[::1]:8\n2001:db8::7\n[2001:db8::8]\n")) == "::1:8 2001:db8::7 2001:db8::8");
  CHECK(hosts_of("gpu01 address=fe80::1%eth0")[0].address == "fe80::1%eth0");
  CHECK(hosts_of("gpu01 address=[fe80::1]")[0].address == "fe80::1");
  CHECK(hosts_of("me@[::1]:2")[0].user == "me");
  CHECK(errors_of("[::g]:8") == Texts{"hosts:1:2: \"::g\" is not an IPv6 address"});
  CHECK(errors_of("[::1]8") ==
        Texts{"hosts:1:6: unexpected \"8\" after the address; write slots as [::1]:8"});
  CHECK(errors_of("a:b:c") ==
        Texts{"hosts:1:1: \"a:b:c\" is neither host:slots nor an IPv6 address; with slots write [::1]:8"});
}

TEST_CASE("Bad slots") {
  const std::string is_not = " is not a number of slots (a whole number from 1 to 65535)";
  CHECK(errors_of("gpu01 slots=4x") == Texts{"hosts:1:13: slots=4x: \"4x\"" + is_not});
  CHECK(errors_of("gpu01 slots=0") == Texts{"hosts:1:13: slots=0: \"0\"" + is_not});
  CHECK(errors_of("gpu01 slots=-2") == Texts{"hosts:1:13: slots=-2: \"-2\"" + is_not});
  CHECK(errors_of("gpu01 slots=65536") == Texts{"hosts:1:13: slots=65536: \"65536\"" + is_not});
  CHECK(errors_of("gpu01 slots=99999999999999999999") ==
        Texts{"hosts:1:13: slots=99999999999999999999: \"99999999999999999999\"" + is_not});
  CHECK(errors_of("gpu01:4x") == Texts{"hosts:1:7: \"4x\"" + is_not});
  CHECK(errors_of("gpu01:") == Texts{"hosts:1:7: \"\"" + is_not});
  CHECK(errors_of("gpu01 slots=") == Texts{"hosts:1:13: slots= has no value"});
  CHECK(errors_of("gpu01 slots=4 slots=4") == Texts{"hosts:1:15: slots is given twice for this host"});
  CHECK(errors_of("gpu01:4 slots=4") ==
        Texts{"hosts:1:9: slots is given twice for this host: the :4 of the name is "
              "slots, too; a port is port=4"});
  CHECK(errors_of("root@gpu01:2222 cpu=8") == Texts{"hosts:1:17: cpu is given twice for this host (it means "
                                                    "slots=): the :2222 of the name is slots, too; a "
                                                    "port is port=2222"});
  CHECK(errors_of("[::1]:22 slots=8 slots=8").size() == 2);
  CHECK(errors_of("gpu01 slots=4 cpu=4") ==
        Texts{"hosts:1:15: cpu is given twice for this host (it means slots=)"});
  CHECK(errors_of("a@gpu01 username=a") ==
        Texts{"hosts:1:9: username is given twice for this host (it means user=)"});
  CHECK(errors_of("gpu01 max-slots=4 cpu-max=4") ==
        Texts{"hosts:1:19: cpu-max is given twice for this host (it means max_slots=)"});
  CHECK(errors_of("gpu01 slots=4 max_slots=2") == Texts{"hosts:1:1: max_slots=2 is less than slots=4"});
}

TEST_CASE("Unknown keys and malformed jump hosts are errors") {
  CHECK(errors_of("gpu01 slot=8") == Texts{"hosts:1:7: unknown key slot; did you mean slots?"});
  CHECK(errors_of("gpu01 Slots=8") == Texts{"hosts:1:7: unknown key Slots; did you mean slots?"});
  CHECK(errors_of("gpu01 prot=22") == Texts{"hosts:1:7: unknown key prot; did you mean port?"});
  CHECK(errors_of("gpu01 ifhn=ib0") == Texts{"hosts:1:7: unknown key ifhn; known keys: slots, port, user, "
                                             "address, identity, chdir, gpus, max_slots, "
                                             "jump, wrapper, setup, env:NAME"});
  CHECK(
      errors_of("gpu01 jump=a@,b") ==
      Texts{
          "hosts:1:12: jump=a@,b: \"a@\" is not a jump host; write [user@]host[:port], separated by commas"});
  for (const char* bad : {"-x", "a:0", "a:x", "a:70000", "[a]", "[::1]22", "::1", "a,,b", "a;b@c", "@a"})
    CHECK(errors_of(std::string("gpu01 jump=") + bad).size() == 1);
  CHECK(errors_of("gpu01 jump=none,b") ==
        Texts{"hosts:1:12: jump=none,b: none cannot be combined with hosts; give jump hosts or none"});
  for (const char* good : {"none", "bastion", "me@bastion:2222,[::1]:22,b", "ssh://a", "[fe80::1]"})
    CHECK(hosts_of(std::string("gpu01 jump=") + good)[0].jump == good);
  CHECK(errors_of("gpu01 =8") == Texts{"hosts:1:7: a key is missing before ="});
}

TEST_CASE("A wrapper is split into words") {
  using Words = std::vector<std::string>;
  const auto text_of = [](const char* line) { return hosts_of(line)[0].wrapper; };
  CHECK(text_of("gpu01 wrapper=enter") == Words{"enter"});
  CHECK(text_of("gpu01 wrapper=\"docker exec -i x\" slots=2") == Words{"docker", "exec", "-i", "x"});
  CHECK(text_of(R"(gpu01 wrapper="run 'my box' \"a  b\" c\\ d")") == Words{"run", "my box", "a  b", "c d"});
  CHECK(text_of("gpu01").empty());
  CHECK(errors_of("gpu01 wrapper=") == Texts{"hosts:1:15: wrapper= has no value"});
  CHECK(errors_of("gpu01 wrapper=\"  \"") == Texts{"hosts:1:15: wrapper= has no value"});
  CHECK(errors_of("gpu01 wrapper=\"a 'b\"") ==
        Texts{"hosts:1:15: wrapper=\"a 'b\": the quote ' is not closed"});
  // Only a --host entry can contain a line feed.
  const HostEntry torn = parse_entry("gpu01 wrapper=\"sh 'a\nb'\"");
  REQUIRE(torn.diagnostics.size() == 1);
  CHECK(torn.diagnostics[0].offset == 14);
  CHECK(torn.diagnostics[0].message.ends_with(
      ": a word contains a line feed, which not every shell can quote"));
}

TEST_CASE("Words that are no KEY=VALUE are errors") {
  CHECK(errors_of("gpu01 8") == Texts{"hosts:1:7: unexpected word \"8\"; did you mean slots=8?"});
  CHECK(errors_of("gpu01 gpu02") ==
        Texts{"hosts:1:7: unexpected word \"gpu02\"; write pairs like slots=8 after the host"});
  CHECK(errors_of("slots=8") == Texts{"hosts:1:1: the host's name is missing before \"slots=8\""});
  CHECK(errors_of("gpu01,gpu02") == Texts{"hosts:1:6: ',' is not allowed in a host name; write one host per "
                                          "line, or a range like gpu[01,03]"});
}

TEST_CASE("Bad values of the other keys are errors") {
  CHECK(errors_of("a port=0") == Texts{"hosts:1:8: port=0: \"0\" is not a port number from 1 to 65535"});
  CHECK(errors_of("a port=ssh") ==
        Texts{"hosts:1:8: port=ssh: \"ssh\" is not a port number from 1 to 65535"});
  CHECK(errors_of("a chdir=data") == Texts{"hosts:1:9: chdir=data: a path on the node must begin with /"});
  CHECK(errors_of("a gpus=0,0") == Texts{"hosts:1:10: 0 is given twice"});
  CHECK(errors_of("a address=-oProxyCommand") ==
        Texts{"hosts:1:11: \"-oProxyCommand\" is neither a host name nor an address"});
  CHECK(errors_of("a env:1A=x") == Texts{"hosts:1:7: \"1A\" is not the name of an environment variable"});
  CHECK(errors_of("a env:A=x env:A=y") == Texts{"hosts:1:11: env:A is given twice for this host"});
  CHECK(errors_of("x@a user=y") == Texts{"hosts:1:5: user is given twice for this host"});
  CHECK(errors_of("ssh://root@h slots=2") ==
        Texts{"hosts:1:1: \"ssh://root@h\" is a URL; write user@host, and the port as port=2222 after it"});
  CHECK(errors_of("-x@a") == Texts{"hosts:1:1: \"-x\" is not a user name"});
  CHECK(errors_of("a user=$(id)") == Texts{"hosts:1:8: \"$(id)\" is not a user name"});
  CHECK(errors_of("gpu[1-3] address=10.0.0.1") == Texts{"hosts:1:18: 3 hosts, but 1 address"});
  CHECK(errors_of("gpu[1-2] address=10.0.0.[1-3]") == Texts{"hosts:1:18: 2 hosts, but 3 addresses"});
}

TEST_CASE("Quotes") {
  CHECK(errors_of("a env:A=\"x") == Texts{"hosts:1:9: the quote is not closed"});
  CHECK(errors_of("a env:A=\"x\"y port=0") ==
        Texts{"hosts:1:12: a blank is missing after the closing quote",
              "hosts:1:19: port=0: \"0\" is not a port number from 1 to 65535"});
  CHECK(errors_of("a env:A=x\"y\"") ==
        Texts{"hosts:1:10: a quote inside a value; put all of the value into quotes: env:A=\"…\""});
  // A '#' may be intended, so it is never cut silently.
  CHECK(errors_of("a env:COLOUR=x#fff") ==
        Texts{"hosts:1:15: '#' inside a value; put the value into quotes, or a blank before the comment"});
  CHECK(hosts_of("a env:COLOUR=\"#fff\" # white")[0].env == Env{{"COLOUR", "#fff"}});
}

TEST_CASE("Unexpected characters are errors") {
  CHECK(
      errors_of("gpu01 slots=2,gpu02") ==
      Texts{
          "hosts:1:13: slots=2,gpu02: \"2,gpu02\" is not a number of slots (a whole number from 1 to 65535); "
          "write one host per line"});
  CHECK(errors_of("gpu$1") == Texts{"hosts:1:4: '$' is not allowed in a host name"});
  CHECK(errors_of("-oProxyCommand=x") == Texts{"hosts:1:1: a host name cannot begin with '-'"});
  CHECK(errors_of("gpu01\xC2\xA0slots=8") ==
        Texts{"hosts:1:6: stray no-break space (U+00A0); delete it, or write a plain blank"});
  CHECK(errors_of("gpu01 slots=\xE2\x80\x8B"
                  "8") ==
        Texts{"hosts:1:13: stray invisible character U+200B; delete it, or write a plain blank"});
  CHECK(errors_of("gpu01\xE3\x80\x80slots=8").size() == 1);
  CHECK(hosts_of("gpu01 env:A=\"x\xC2\xA0y\" # \xC2\xA0")[0].env == Env{{"A", "x\xC2\xA0y"}});
  CHECK(errors_of(std::string("gpu\0x", 5)) == Texts{"hosts:1:4: stray control character (byte 0)"});
  CHECK(errors_of("gpu01 slots=8\vx") == Texts{"hosts:1:14: stray control character (byte 11)"});
  CHECK(brief(hosts_of("gpu01 # caf\xC3\xA9 \x01 \"\n")) == "gpu01");
  CHECK(errors_of("\xFF\xFEg\0") ==
        Texts{"hosts:1:1: this is UTF-16 text; save the file as UTF-8 or plain ASCII"});
  CHECK(errors_of("@gpu01") == Texts{"hosts:1:1: \"\" is not a user name"});
  CHECK(errors_of("me@") == Texts{"hosts:1:4: the host's name is missing"});
}

TEST_CASE("Columns count characters, not bytes") {
  CHECK(errors_of("a env:X=\xC3\xA9\xC3\xA9 slots=0") ==
        Texts{"hosts:1:18: slots=0: \"0\" is not a number of slots (a whole number from 1 to 65535)"});
}

TEST_CASE("Repeated lines of a host add up as in Open MPI") {
  CHECK(brief(hosts_of("node1\nnode1\nnode2\nnode1\n")) == "node1:3 node2");
  // ssh and the resolver ignore the case of letters.
  CHECK(brief(hosts_of("GPU01\ngpu01")) == "GPU01:2");
  CHECK(hosts_of("node1\n\nnode1\n").front().location.line == 1);
  CHECK(brief(*parse_host_list("a,b,A,a", "--host")) == "a:3 b");
}

TEST_CASE("A slot count that is given twice is an error, as in Open MPI") {
  const std::string twice =
      ": multiple definitions of the slot count; only lines without slots add up; give each "
      "host one entry with all of its slots";
  const std::string first = " is listed twice (first on line 1)";
  CHECK(errors_of("node1 slots=8\nnode2\nnode1 slots=8\nnode1 slots=8\n") ==
        Texts{"hosts:3:1: host node1" + first + twice, "hosts:4:1: host node1" + first + twice});
  CHECK(errors_of("node1 slots=2\nnode1\n") == Texts{"hosts:2:1: host node1" + first + twice});
  CHECK(errors_of("node1\nnode1\nnode1:2\n") == Texts{"hosts:3:1: host node1" + first + twice});
  CHECK(errors_of("GPU01 slots=4\ngpu01 slots=4") == Texts{"hosts:2:1: host gpu01" + first + twice});
  CHECK(texts_of(parse_host_list("a:4,b,a:4", "--host").error().list) ==
        Texts{"--host, column 7: host a is listed twice (first at column 1): multiple definitions of the "
              "slot count; "
              "only entries without slots add up; give each host one entry with all of its slots"});
  CHECK(texts_of(parse_host_list("a port=22,a", "--host").error().list) ==
        Texts{"--host, column 11: host a is listed twice (first at column 1); entries with port= do not add "
              "up; give "
              "each host one entry with all of its slots"});
}

TEST_CASE("A duplicate host is an error that names the first location") {
  CHECK(errors_of("gpu01 slots=4\n\ngpu01 slots=4 port=22\n") ==
        Texts{"hosts:3:1: host gpu01 is listed twice (first on line 1); lines with port= do not add up; give "
              "each host one entry with all of its slots"});
  CHECK(errors_of("gpu01 slots=2 max_slots=4\ngpu01 slots=2 max_slots=4\n") ==
        Texts{"hosts:2:1: host gpu01 is listed twice (first on line 1); lines with max_slots= do not add up; "
              "give each host one entry with all of its slots"});
  CHECK(errors_of("gpu[01-16]\ngpu[08-10]\n") == Texts{"hosts:2:1: host gpu08 and 2 more of this range are "
                                                       "listed twice (first on line 1); give each host one "
                                                       "entry with all of its slots"});
  CHECK(errors_of("gpu[1,1]") ==
        Texts{"hosts:1:1: host gpu1 is listed twice (first on line 1); give each host one "
              "entry with all of its slots"});
  CHECK(errors_of("gpu[01-16] slots=8\ngpu08 slots=8\n").size() == 1);
  CHECK(errors_of("gpu01 gpus=0\ngpu01\n").size() == 1);
  CHECK(errors_of("gpu01 slots=65535\ngpu01\n").size() == 1);
  CHECK(errors_of("me@gpu01\nyou@gpu01").size() == 1);
}

TEST_CASE("A file without hosts is an error") {
  const Texts none = {"hosts: no hosts in this file; write one host a line, for instance: gpu01 slots=8"};
  CHECK(errors_of("") == none);
  CHECK(errors_of("\n# gpu01 slots=8\n\n") == none);
}

TEST_CASE("All errors of a file are reported at once, in its order") {
  CHECK(errors_of("a slots=0\nb slots=4x port=70000\n\nc what=1\na\n[1-2\n") ==
        Texts{"hosts:1:9: slots=0: \"0\" is not a number of slots (a whole number from 1 to 65535)",
              "hosts:2:9: slots=4x: \"4x\" is not a number of slots (a whole number from 1 to 65535)",
              "hosts:2:17: port=70000: \"70000\" is not a port number from 1 to 65535",
              "hosts:4:3: unknown key what; known keys: slots, port, user, address, identity, chdir, gpus, "
              "max_slots, jump, wrapper, setup, "
              "env:NAME",
              "hosts:6:1: \"[\" has no \"]\""});
}

TEST_CASE("Errors of a file that is no hostfile are not listed line by line") {
  std::string text;
  for (int i = 0; i < 5000; ++i)
    text += "int main() {\n";
  CHECK(errors_of(text).size() == kMaxDiagnostics);
}

TEST_CASE("The number of hosts, ranges and the length of a line are limited") {
  CHECK(errors_of("n[1-100000]\nlast\n") == Texts{"hosts:2:1: more than 100000 hosts"});
  CHECK(errors_of("gpu[16-01]") == Texts{"hosts:1:5: range 16-01 is reversed; write 01-16"});
  CHECK(errors_of("gpu[1-200000]") == Texts{"hosts:1:5: range 1-200000 has more than 100000 entries"});
  CHECK(errors_of("a\n" + std::string(20'000, 'x')) ==
        Texts{"hosts:2:16385: the line is longer than 16384 bytes"});
}

TEST_CASE("--host has the same grammar, with commas") {
  auto parsed = parse_host_list("a:4,b:4,c[1-2,5]:2, me@d slots=3 gpus=\"0,2\" ,[::1]:8", "--host");
  REQUIRE(parsed.has_value());
  CHECK(brief(*parsed) == "a:4 b:4 c1:2 c2:2 c5:2 d:3 ::1:8");
  CHECK((*parsed)[5].devices == Texts{"0", "2"});
  CHECK((*parsed)[5].location.file == "--host");
  CHECK((*parsed)[5].location.line == 0);

  auto diagnostics = [](const std::string& text) {
    return texts_of(parse_host_list(text, "--host").error().list);
  };
  CHECK(
      diagnostics("a:4,b:x,,a") ==
      Texts{"--host, column 7: \"x\" is not a number of slots (a whole number from 1 to 65535)",
            "--host, column 9: a host is missing",
            "--host, column 10: host a is listed twice (first at column 1): multiple definitions of the "
            "slot count; only entries without slots add up; give each host one entry with all of its slots"});
  CHECK(diagnostics("") == Texts{"--host, column 1: a host is missing"});
  const std::string or_next = ", or start the next host; write ";
  CHECK(diagnostics("a env:X=1,2 slots=1") ==
        Texts{"--host, column 10: this comma may belong to the value of env:X" + or_next +
              "env:X=\"…\" with quotes, or a blank after the comma"});
  for (const char* bad : {"a gpus=0,1", "a gpus=0,2-3", "a gpus=GPU-1,GPU-2", "a gpus = 0,1", "a jump=b,c"})
    CHECK(diagnostics(bad).size() == 1);
  for (const char* good : {"a gpus=0,b gpus=1", "a env:X=1, b", "a env:X=\"1,2\",b", "a jump=c, b",
                           "a slots=2,2", "a gpus=0 slots=1,1"})
    CHECK(parse_host_list(good, "--host")->size() == 2);
  CHECK(diagnostics("a # b") == Texts{"--host, column 3: a comment is not allowed here"});
  CHECK(diagnostics("a\nb") == Texts{"--host, column 2: stray control character (byte 10)"});
  CHECK(diagnostics("a,\xC2\xA0"
                    "b") ==
        Texts{"--host, column 3: stray no-break space (U+00A0); delete it, or write a plain blank"});
}
