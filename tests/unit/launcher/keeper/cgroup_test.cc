#include "launcher/keeper/cgroup.h"

#include "tests/support/catch.h"

namespace ddp::launcher {
namespace {

struct System {
  const char* mountinfo;
  const char* self_cgroup;
  std::string v2() const { return find_cgroup(mountinfo, self_cgroup, ""); }
  std::string freezer() const { return find_cgroup(mountinfo, self_cgroup, "freezer"); }
};

}  // namespace

TEST_CASE("a login over SSH below systemd, with version 2 alone") {
  const System debian{
      "22 28 0:20 / /sys rw,nosuid,nodev,noexec,relatime shared:7 - sysfs sysfs rw\n"
      "28 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw,discard,errors=remount-ro\n"
      "31 22 0:26 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 "
      "rw,nsdelegate,memory_recursiveprot\n"
      "32 22 0:27 / /sys/fs/pstore rw,nosuid,nodev,noexec,relatime shared:10 - pstore pstore rw\n",
      "0::/user.slice/user-1000.slice/session-3.scope\n"};
  CHECK(debian.v2() == "/sys/fs/cgroup/user.slice/user-1000.slice/session-3.scope");
  CHECK(debian.freezer().empty());
}

TEST_CASE("version 1 and 2 side by side") {
  const System ubuntu{
      "24 29 0:22 / /sys rw,nosuid,nodev,noexec,relatime shared:7 - sysfs sysfs rw\n"
      "32 24 0:27 / /sys/fs/cgroup ro,nosuid,nodev,noexec shared:9 - tmpfs tmpfs ro,mode=755\n"
      "33 32 0:28 / /sys/fs/cgroup/unified rw,nosuid,nodev,noexec,relatime shared:10 - cgroup2 cgroup2 "
      "rw,nsdelegate\n"
      "34 32 0:29 / /sys/fs/cgroup/systemd rw,nosuid,nodev,noexec,relatime shared:11 - cgroup cgroup "
      "rw,xattr,name=systemd\n"
      "37 32 0:32 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid,nodev,noexec,relatime shared:14 - cgroup cgroup "
      "rw,cpu,cpuacct\n"
      "41 32 0:36 / /sys/fs/cgroup/freezer rw,nosuid,nodev,noexec,relatime shared:18 - cgroup cgroup "
      "rw,freezer\n",
      "12:cpu,cpuacct:/user.slice\n4:freezer:/\n1:name=systemd:/user.slice/user-1000.slice/session-4.scope\n"
      "0::/user.slice/user-1000.slice/session-4.scope\n"};
  CHECK(ubuntu.v2() == "/sys/fs/cgroup/unified/user.slice/user-1000.slice/session-4.scope");
  CHECK(ubuntu.freezer() == "/sys/fs/cgroup/freezer");
  CHECK(find_cgroup(ubuntu.mountinfo, ubuntu.self_cgroup, "cpuacct") ==
        "/sys/fs/cgroup/cpu,cpuacct/user.slice");
  CHECK(find_cgroup(ubuntu.mountinfo, ubuntu.self_cgroup, "memory").empty());

  const System virtual_machine{
      "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"
      "37 31 0:34 / /sys/fs/cgroup/freezer rw,relatime - cgroup cgroup rw,freezer\n"
      "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n",
      "6:freezer:/\n4:memory:/process_api/dbe55c6a91cb46b4\n0::/\n"};
  CHECK(virtual_machine.v2() == "/sys/fs/cgroup/unified");
  CHECK(virtual_machine.freezer() == "/sys/fs/cgroup/freezer");
}

TEST_CASE("containers of Docker") {
  const System own_namespace{
      "1043 1037 0:30 / /sys/fs/cgroup ro,nosuid,nodev,noexec,relatime - cgroup2 cgroup "
      "rw,nsdelegate,memory_recursiveprot\n",
      "0::/\n"};
  CHECK(own_namespace.v2() == "/sys/fs/cgroup");
  const System hosts_namespace{
      "1043 1037 0:30 / /sys/fs/cgroup ro,nosuid,nodev,noexec,relatime - cgroup2 cgroup rw\n",
      "0::/system.slice/docker-3c1f8b.scope\n"};
  CHECK(hosts_namespace.v2() == "/sys/fs/cgroup/system.slice/docker-3c1f8b.scope");
  // Version 1: the mount shows the container's group as its root.
  const System version_1{
      "680 679 0:33 /docker/8ab1 /sys/fs/cgroup/systemd ro,nosuid,nodev,noexec,relatime master:11 - cgroup "
      "cgroup rw,xattr,name=systemd\n"
      "689 679 0:42 /docker/8ab1 /sys/fs/cgroup/freezer ro,nosuid,nodev,noexec,relatime master:20 - cgroup "
      "cgroup rw,freezer\n",
      "5:freezer:/docker/8ab1\n1:name=systemd:/docker/8ab1\n0::/system.slice/containerd.service\n"};
  CHECK(version_1.freezer() == "/sys/fs/cgroup/freezer");
  CHECK(version_1.v2().empty());
  const System below_it{version_1.mountinfo, "5:freezer:/docker/8ab1/mine\n"};
  CHECK(below_it.freezer() == "/sys/fs/cgroup/freezer/mine");
  const System stranger{version_1.mountinfo, "5:freezer:/docker/8ab12\n"};
  CHECK(stranger.freezer().empty());
}

TEST_CASE("pods of Kubernetes") {
  const System version_1{
      "2411 2401 0:35 /kubepods/burstable/pod1f2e/77aa /sys/fs/cgroup/freezer "
      "ro,nosuid,nodev,noexec,relatime "
      "master:19 - cgroup cgroup rw,freezer\n",
      "9:freezer:/kubepods/burstable/pod1f2e/77aa\n0::/\n"};
  CHECK(version_1.freezer() == "/sys/fs/cgroup/freezer");
  CHECK(version_1.v2().empty());
  const System version_2{
      "5121 5116 0:29 / /sys/fs/cgroup ro,nosuid,nodev,noexec,relatime - cgroup2 cgroup rw\n", "0::/\n"};
  CHECK(version_2.v2() == "/sys/fs/cgroup");
}

TEST_CASE("a group that no mount shows is not guessed") {
  // The host's directory is mounted into a container with its own namespace: the mount shows ancestors.
  const System ancestors{"812 700 0:26 /../.. /host/cgroup rw,relatime - cgroup2 cgroup2 rw\n", "0::/\n"};
  CHECK(ancestors.v2().empty());
  // The process was moved out of the namespace that the mount shows.
  const System moved_out{"812 700 0:26 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw\n", "0::/../job7\n"};
  CHECK(moved_out.v2().empty());
  const System removed{"812 700 0:26 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw\n",
                       "0::/job7 (deleted)\n"};
  CHECK(removed.v2().empty());
  const System none{"28 1 254:1 / / rw,relatime - ext4 /dev/vda1 rw\n", "0::/\n"};
  CHECK(none.v2().empty());
  CHECK(System{"", ""}.v2().empty());
  CHECK(System{"", ""}.freezer().empty());
  CHECK(System{"812 700 0:26 / /x rw - cgroup2 cgroup2 rw\n", ""}.v2().empty());
}

TEST_CASE("unusual mounts are parsed") {
  // Optional fields, spaces, backslashes and a dash in names.
  const System misbehaved{
      "36 35 0:26 /a\\040b /mnt/c\\134d\\011-\\012e rw master:1 propagate_from:2 unbindable - "
      "cgroup2 none rw\n",
      "0::/a b/c:d\n"};
  CHECK(misbehaved.v2() == "/mnt/c\\d\t-\ne/c:d");
  const System not_octal{"36 35 0:26 / /a\\08b\\xyz rw - cgroup2 none rw\n", "0::/\n"};
  CHECK(not_octal.v2() == "/a\\08b\\xyz");
  // The first mount shows another part of the tree. Of mounts at one place, the last one is visible.
  const System several{
      "36 35 0:26 /else /one rw - cgroup2 none rw\n36 35 0:26 / /two rw - cgroup2 none rw\n"
      "36 35 0:26 / /three rw - cgroup2 none rw\n36 35 0:26 /us /two rw - cgroup2 none rw\n",
      "0::/us/x\n"};
  CHECK(several.v2() == "/two/x");
  const System covered{"36 35 0:26 / /two rw - cgroup2 none rw\n36 35 0:26 /else /two rw - cgroup2 none rw\n",
                       "0::/us\n"};
  CHECK(covered.v2().empty());
  const System at_root{"36 35 0:26 / / rw - cgroup2 none rw\n", "0::/us\n"};
  CHECK(at_root.v2() == "/us");
  for (const char* relative :
       {"36 35 0:26  /two rw - cgroup2 none rw", "36 35 0:26 / two rw - cgroup2 none rw"})
    CHECK(System{relative, "0::/\n"}.v2().empty());
  for (const char* broken :
       {"\n", " ", "36 35 0:26 / /two rw - cgroup2", "36 35 0:26 / /two rw", "- cgroup2 none rw",
        "36 35 0:26 two three rw - cgroup2 none rw", "36 35 0:26 \\04 /\\4 - - -"}) {
    CHECK(System{broken, "0::/\n"}.freezer().empty());
  }
  CHECK(System{"36 35 0:26 / /two rw - cgroup2", "0::/"}.v2() == "/two");
  CHECK(System{"36 35 0:26 / /two rw - cgroup2 none rw\n", "::/\n0:\n:\n0:x:/\n"}.v2().empty());
}

TEST_CASE("names of groups are made and recognized") {
  CHECK(cgroup_name("run-7", 2, 4242) == "ddplaunch.run-7.2.4242");
  CHECK(cgroup_name("a/b\n..", 0, 1) == "ddplaunch.a_b_...0.1");
  CHECK(cgroup_name(std::string(1000, 'x'), 4294967295u, ~std::uint64_t{0}).size() < 255);
  CHECK(is_cgroup_name("ddplaunch.run-7.2.4242"));
  CHECK(is_cgroup_name(cgroup_name("a.b.c", 0, 1)));
  CHECK(is_cgroup_name(cgroup_name(std::string(1000, '/'), 0, 1)));
  for (const char* other : {"", "ddplaunch", "ddplaunch.", "ddplaunch.service", "ddplaunch.1.2",
                            "ddplaunch.job.1.x", "ddplaunch.job.x.1", "ddplaunch..1.2", "Ddplaunch.job.1.2",
                            "ddplaunch.job.1.2 ", "ddplaunch.a/b.1.2", "system.slice"})
    CHECK_FALSE(is_cgroup_name(other));
}

}  // namespace ddp::launcher
