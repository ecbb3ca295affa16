#include "remote/hosts/host.h"

#include <algorithm>

#include "tests/support/catch.h"

using ddp::remote::expand_ids;
using ddp::remote::expand_ranges;
using ddp::remote::Expansion;
using ddp::remote::is_ipv4;
using ddp::remote::is_ipv6;
using Words = std::vector<std::string>;

namespace {

std::string error_of(const Expansion& expansion) {
  if (!expansion.error) return "";
  CHECK(expansion.words.empty());
  return std::to_string(expansion.error->offset) + ": " + expansion.error->message;
}

}  // namespace

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
