#include "remote/hosts/host.h"

#include <algorithm>

#include "remote/hosts/hostfile.h"
#include "tests/support/catch.h"

namespace ddp::remote {
namespace {

using Texts = std::vector<std::string>;

const std::string kFile = "gpu01 slots=4\ngpu02 slots=4\ngpu03 slots=2 gpus=5,7\nplain\n[::1]:2\n";

// Returns text like "gpu01:2(0,2) gpu02:4".
std::string filtered(const std::string& include, const std::string& exclude,
                     const std::string& file = kFile) {
  auto kept = filter_hosts(*parse_hostfile(file, "hosts"), include, exclude);
  if (!kept) {
    for (const Diagnostic& diagnostic : kept.error().list)
      UNSCOPED_INFO(to_text(diagnostic));
  }
  REQUIRE(kept.has_value());
  std::string text;
  for (const Host& host : *kept) {
    text += (text.empty() ? "" : " ") + host.name + (host.slots ? ':' + std::to_string(*host.slots) : "");
    std::string devices;
    for (const std::string& device : host.devices)
      devices += (devices.empty() ? "" : ",") + device;
    if (!devices.empty()) text += '(' + devices + ')';
  }
  return text;
}

Texts refused(const std::string& include, const std::string& exclude, const std::string& file = kFile) {
  auto kept = filter_hosts(*parse_hostfile(file, "hosts"), include, exclude);
  REQUIRE_FALSE(kept.has_value());
  Texts texts;
  for (const Diagnostic& diagnostic : kept.error().list)
    texts.push_back(to_text(diagnostic));
  return texts;
}

TEST_CASE("No filter keeps all") {
  CHECK(filtered("", "") == "gpu01:4 gpu02:4 gpu03:2(5,7) plain ::1:2");
}

TEST_CASE("Include keeps hosts and slots, in the order of the file") {
  CHECK(filtered("gpu02@gpu01", "") == "gpu01:4 gpu02:4");
  CHECK(filtered("gpu02:0,2@gpu01", "") == "gpu01:4 gpu02:2(0,2)");
  CHECK(filtered("gpu02:2,0", "") == "gpu02:2(0,2)");
  CHECK(filtered("gpu02:1-3", "") == "gpu02:3(1,2,3)");
  CHECK(filtered("gpu[01-02]:0,1", "") == "gpu01:2(0,1) gpu02:2(0,1)");
  CHECK(filtered("GPU01", "") == "gpu01:4");
  CHECK(filtered("[::1]:1", "") == "::1:1(1)");
  CHECK(filtered("::1", "") == "::1:2");
}

TEST_CASE("Entries for one host add up") {
  CHECK(filtered("gpu01:0@gpu01:3", "") == "gpu01:2(0,3)");
  CHECK(filtered("gpu01:0@gpu01", "") == "gpu01:4");
  CHECK(filtered("gpu01:0,1,1", "") == "gpu01:2(0,1)");  // what is named twice counts once
  CHECK(filtered("gpu01:1-3,2", "") == "gpu01:3(1,2,3)");
  CHECK(filtered("", "gpu01:0,0@gpu[02-03]@plain@::1") == "gpu01:3(1,2,3)");
}

TEST_CASE("The user of a host may be in front of it") {
  const std::string file = "root@gpu01 slots=2\ngpu[02-03] slots=2 user=root\nroot@::1\ngpu04 slots=2\n";
  CHECK(filtered("root@gpu01", "", file) == "gpu01:2");
  CHECK(filtered("root@gpu01:1@root@gpu[02-03]@gpu04@root@::1", "", file) ==
        "gpu01:1(1) gpu02:2 gpu03:2 ::1 gpu04:2");
  CHECK(filtered("", "gpu04@root@GPU02@root@[::1]", file) == "gpu01:2 gpu03:2");
  CHECK(refused("root@gpu04", "", file) == Texts{"--include, column 1: host root is not in hosts"});
  CHECK(refused("you@gpu01", "", file) == Texts{"--include, column 1: host you is not in hosts"});
  CHECK(refused("gpu01@root", "", file) == Texts{"--include, column 7: host root is not in hosts"});
}

TEST_CASE("A host without slots accepts any slot, and then has as many") {
  CHECK(filtered("plain:0,6", "") == "plain:2(0,6)");
  CHECK(filtered("plain", "") == "plain");
}

TEST_CASE("Slots index the devices of gpus=") {
  CHECK(filtered("gpu03:1", "") == "gpu03:1(7)");
}

TEST_CASE("Exclude removes hosts and slots") {
  CHECK(filtered("", "gpu01@gpu03@plain@::1") == "gpu02:4");
  CHECK(filtered("", "gpu01:0@gpu[02-03]@plain@[::1]") == "gpu01:3(1,2,3)");
  CHECK(filtered("", "gpu01:0-3@gpu02@plain@::1") == "gpu03:2(5,7)");
  CHECK(filtered("", "gpu03:0@gpu01@gpu02@plain@::1") == "gpu03:1(7)");
}

TEST_CASE("A filter that cannot apply is an error") {
  CHECK(refused("gpu01", "gpu02") ==
        Texts{"--include and --exclude cannot be used together; use one of them"});
  CHECK(refused("gpu01@gpu1", "") ==
        Texts{"--include, column 7: host gpu1 is not in hosts; did you mean gpu01?"});
  CHECK(refused("", "zebra") == Texts{"--exclude, column 1: host zebra is not in hosts"});
  CHECK(refused("gpu01:4", "") ==
        Texts{"--include, column 1: gpu01 has no slot 4: slots=4 in hosts:1 makes 0 to 3"});
  CHECK(refused("", "gpu01:0,9@gpu02:x") ==
        Texts{"--exclude, column 1: gpu01 has no slot 9: slots=4 in hosts:1 makes 0 to 3",
              "--exclude, column 17: \"x\" is not a slot number; slots are numbered from 0, and hosts are "
              "separated "
              "by '@': gpu01:0,2@gpu02"});
  CHECK(refused("a", "", "b slots=1\n") ==
        Texts{"--include, column 1: host a is not in hosts; did you mean b?"});
  CHECK(refused("b:1", "", "b slots=1\n") ==
        Texts{"--include, column 1: b has no slot 1: slots=1 in hosts:1 makes 0"});
  CHECK(refused("", "plain:0") ==
        Texts{"--exclude: slots of plain cannot be excluded: hosts:4 does not say how many "
              "it has; add slots=N there"});
  CHECK(refused("", "gpu[01-03]@plain@::1") == Texts{"--exclude: no host is left to run on"});
}

TEST_CASE("A malformed filter is an error") {
  CHECK(refused("gpu01@", "") ==
        Texts{"--include, column 7: a host is missing; the form is gpu01:0,2@gpu02"});
  CHECK(refused("gpu01:", "") == Texts{"--include, column 7: empty entry in a list of devices"});
  CHECK(refused("gpu01:3-1", "") == Texts{"--include, column 7: range 3-1 is reversed; write 1-3"});
  CHECK(refused("gpu[01", "") == Texts{"--include, column 4: \"[\" has no \"]\""});
  CHECK(
      refused("gpu01,gpu02", "") ==
      Texts{
          "--include, column 6: ',' separates the slots of one host; hosts are separated by '@': gpu01@gpu02 "
          "or gpu01:0,2@gpu02"});
  CHECK(
      refused("gpu01:0,gpu02:1", "") ==
      Texts{"--include, column 7: \"gpu02:1\" is not a slot number; slots are numbered from 0, and hosts are "
            "separated by '@': gpu01:0,2@gpu02"});
  CHECK(refused("gpu01 gpu02", "") == Texts{"--include, column 6: byte 0x20 is not allowed in a host name"});
  CHECK(refused("[::1]x", "") ==
        Texts{"--include, column 6: expected ':' and slots after the host, as in gpu01:0,2"});
}

using Words = std::vector<std::string>;

std::string error_of(const Expansion& expansion) {
  if (!expansion.error) return "";
  CHECK(expansion.words.empty());
  return std::to_string(expansion.error->offset) + ": " + expansion.error->message;
}

TEST_CASE("Ranges expand in the order written") {
  CHECK(expand_ranges("gpu01").words == Words{"gpu01"});
  CHECK(expand_ranges("gpu[01-03,20]").words == Words{"gpu01", "gpu02", "gpu03", "gpu20"});
  CHECK(expand_ranges("gpu[8-11]").words == Words{"gpu8", "gpu9", "gpu10", "gpu11"});
  CHECK(expand_ranges("gpu[08-10]").words == Words{"gpu08", "gpu09", "gpu10"});
  CHECK(expand_ranges("gpu[99-101]").words == Words{"gpu99", "gpu100", "gpu101"});
  CHECK(expand_ranges("n[0]").words == Words{"n0"});
  CHECK(expand_ranges("n[00]").words == Words{"n00"});
  CHECK(expand_ranges("n[5,3]").words == Words{"n5", "n3"});
  CHECK(expand_ranges("gpu[1-2].lab.example").words == Words{"gpu1.lab.example", "gpu2.lab.example"});
}

TEST_CASE("Several brackets multiply, and the last one varies fastest") {
  CHECK(expand_ranges("r[1-2]n[1,3]").words == Words{"r1n1", "r1n3", "r2n1", "r2n3"});
}

TEST_CASE("A wrong range is an error that names text and reason") {
  CHECK(error_of(expand_ranges("gpu[16-01]")) == "4: range 16-01 is reversed; write 01-16");
  CHECK(error_of(expand_ranges("gpu[1,9-2]")) == "6: range 9-2 is reversed; write 2-9");
  CHECK(error_of(expand_ranges("gpu[]")) == "4: empty brackets; write a range like [01-16]");
  CHECK(error_of(expand_ranges("gpu[1-")) == "3: \"[\" has no \"]\"");
  CHECK(error_of(expand_ranges("gpu1]")) == "4: \"]\" has no \"[\"");
  CHECK(error_of(expand_ranges("gpu[1[2]]")) == "5: \"[\" inside a range");
  CHECK(error_of(expand_ranges("gpu[1,,2]")) == "6: \"\" is not a number or a range like 01-16");
  CHECK(error_of(expand_ranges("gpu[a-b]")) == "4: \"a-b\" is not a number or a range like 01-16");
  CHECK(error_of(expand_ranges("gpu[1-2-3]")) == "4: \"1-2-3\" is not a number or a range like 01-16");
  CHECK(error_of(expand_ranges("gpu[-3]")) == "4: \"-3\" is not a number or a range like 01-16");
  CHECK(error_of(expand_ranges("gpu[1-016]")) ==
        "4: the bounds of 1-016 are padded with zeros to different widths");
  CHECK(error_of(expand_ranges("gpu[1-99999999999999999999]")) ==
        "4: the numbers in \"1-99999999999999999999\" are too large");
}

TEST_CASE("Huge ranges are refused before they are expanded") {
  CHECK(expand_ranges("n[1-100000]").words.size() == 100'000);
  CHECK(error_of(expand_ranges("n[0-100000]")) == "2: range 0-100000 has more than 100000 entries");
  CHECK(error_of(expand_ranges("n[0-999999999999999999]")) ==
        "2: range 0-999999999999999999 has more than 100000 entries");
  CHECK(error_of(expand_ranges("n[1-90000,1-90000]")) == "10: the range has more than 100000 entries");
  CHECK(error_of(expand_ranges("a[1-1000]b[1-1000]")) == "10: the ranges give more than 100000 entries");
  CHECK(error_of(expand_ranges("a[1-3]", 2)) == "2: range 1-3 has more than 2 entries");
}

TEST_CASE("Device ids") {
  CHECK(expand_ids("0,2").words == Words{"0", "2"});
  CHECK(expand_ids("0-3,7").words == Words{"0", "1", "2", "3", "7"});
  CHECK(expand_ids("07").words == Words{"7"});
  CHECK(expand_ids("MIG-5c89,GPU-8f1a-22").words == Words{"MIG-5c89", "GPU-8f1a-22"});
  CHECK(error_of(expand_ids("")) == "0: empty entry in a list of devices");
  CHECK(error_of(expand_ids("0,")) == "2: empty entry in a list of devices");
  CHECK(error_of(expand_ids("0,0")) == "2: 0 is given twice");
  CHECK(error_of(expand_ids("0-2,1")) == "4: 1 is given twice");
  CHECK(error_of(expand_ids("2-0")) == "0: range 2-0 is reversed; write 0-2");
  CHECK(error_of(expand_ids("0;1")) ==
        "0: \"0;1\" is not a device number, a range like 0-3, or a device's UUID");
  CHECK(error_of(expand_ids("70000")) == "0: \"70000\" is too large for a device number");
  CHECK(error_of(expand_ids("0-65534,MIG-1")) == "8: more than 65535 devices");
  CHECK(error_of(expand_ids("0-99999999")) == "0: range 0-99999999 has more than 65535 entries");
}

TEST_CASE("Addresses") {
  for (const char* yes : {"::", "::1", "fe80::1%eth0", "2001:db8::8:800:200c:417a", "1:2:3:4:5:6:7:8", "1::8",
                          "::ffff:10.0.0.1", "64:ff9b::10.0.0.1", "1:2:3:4:5:6:1.2.3.4"}) {
    CAPTURE(yes);
    CHECK(is_ipv6(yes));
  }
  for (const char* no : {"", ":", ":::", "1:2", "1::2::3", "1:2:3:4:5:6:7:8:9", "12345::", "g::1", "::1%",
                         "::1.2.3", "1:2:3:4:5:6:7::8", "host:8", "a", "::1%a%b"}) {
    CAPTURE(no);
    CHECK_FALSE(is_ipv6(no));
  }
  CHECK(is_ipv4("127.0.0.1"));
  CHECK_FALSE(is_ipv4("127.0.0"));
  CHECK_FALSE(is_ipv4("127.0.0.256"));
  CHECK_FALSE(is_ipv4("127.0.0.1."));
  CHECK_FALSE(is_ipv4("a.b.c.d"));
}

TEST_CASE("Hosts are sorted by the numbers in their names") {
  std::vector<std::string> hosts{"gpu10",    "10.0.0.10", "gpu2",     "login",    "gpu02",  "10.0.0.2",
                                 "gpu2-ib0", "gpu",       "rack10n1", "rack2n11", "rack2n3"};
  std::sort(hosts.begin(), hosts.end(), ddp::remote::HostOrder());
  CHECK(hosts == std::vector<std::string>{"10.0.0.2", "10.0.0.10", "gpu", "gpu02", "gpu2", "gpu2-ib0",
                                          "gpu10", "login", "rack2n3", "rack2n11", "rack10n1"});
  const ddp::remote::HostOrder less;
  for (const std::string& a : hosts) {
    CHECK_FALSE(less(a, a));
    for (const std::string& b : hosts)
      CHECK((a == b || less(a, b) != less(b, a)));
  }
}

TEST_CASE("Words are merged into ranges, and the ranges expand to them again") {
  struct Row {
    std::vector<std::string> words;
    std::string text;
  };
  const std::vector<Row> rows = {
      {{"gpu01", "gpu02", "gpu03", "gpu07", "login"}, "gpu[01-03,07],login"},
      {{"n8", "n9", "n10", "n11"}, "n[8-11]"},
      {{"n09", "n10"}, "n[09-10]"},
      {{"127.0.0.2", "127.0.0.3"}, "127.0.0.[2-3]"},
      {{"gpu1-ib0", "gpu2-ib0"}, "gpu[1-2]-ib0"},
      {{"a3", "a1"}, "a[3,1]"},
      {{"one"}, "one"},
      {{"one1"}, "one1"},
      {{"::1", "::2"}, "::1,::2"},
      {{}, ""},
  };
  for (const Row& row : rows) {
    CAPTURE(row.text);
    CHECK(ddp::remote::fold_ranges(row.words) == row.text);
  }
}

}  // namespace
}  // namespace ddp::remote
