#include "apps/ddplaunch/options/job_options.h"

#include <algorithm>

#include "tests/support/catch.h"
#include "tests/unit/apps/ddplaunch/options/fake_process_context.h"

using ddp::launcher::JobSpec;
using ddp::test::Env;
using ddp::test::FakeContext;
using ddp::test::Texts;

namespace {

bool has(const Env& env, const std::string& name) {
  return std::any_of(env.begin(), env.end(), [&](const auto& variable) { return variable.first == name; });
}

}  // namespace

TEST_CASE("The launcher's environment is forwarded, except variables of one machine or session") {
  FakeContext world;
  world.env.insert(world.env.end(), {{"SLURM_JOB_ID", "7"}, {"CUDA_VISIBLE_DEVICES", "1"}, {"RANK", "3"}});
  const JobSpec spec = world.spec({"w"});
  CHECK(has(spec.env, "DATA"));
  CHECK(has(spec.env, "PATH"));
  CHECK_FALSE(has(spec.env, "HOME"));
  CHECK_FALSE(has(spec.env, "SLURM_JOB_ID"));
  CHECK_FALSE(has(spec.env, "RANK"));
  CHECK_FALSE(has(spec.env, "CUDA_VISIBLE_DEVICES"));
  CHECK(has(spec.local_env, "CUDA_VISIBLE_DEVICES"));
  CHECK(spec.explicit_env.empty());
}

TEST_CASE("--env") {
  FakeContext world;
  CHECK(world.spec({"--env", "A=1", "--env", "DATA", "--env", "E=", "--env", "A=2", "w"}).explicit_env ==
        Env{{"A", "2"}, {"DATA", "/data"}, {"E", ""}});
  CHECK(world.errors({"--env", "NOT_SET", "--env", "=x", "--env", "a b=x", "w"}).size() == 2);
  CHECK(world.errors({"--env", "a b=x", "w"}) ==
        Texts{"ddplaunch: --env: \"a b\" is not the name of an environment variable"});
  CHECK(world.job({"--env", "CUDA_VISIBLE_DEVICES=1", "w"}).notes.empty());  // one node
  CHECK(world.job({"--host", "a,b", "--env", "NCCL_SOCKET_IFNAME=eth0", "w"}).notes ==
        Texts{"ddplaunch: --env NCCL_SOCKET_IFNAME goes to all nodes alike, though its value usually belongs "
              "to one "
              "machine"});
}

TEST_CASE("--env overrides --env-file") {
  FakeContext world;
  world.files["one"] = "# comment\r\n\r\nA=1\r\n  B = x\n";
  world.files["two"] = "A=2\nC=with spaces and = and \"quotes\"  \nLAST=";
  CHECK(world.errors({"--env-file", "one", "w"}) ==
        Texts{"ddplaunch: one:4:3: the text before '=' is not the name of an environment variable"});
  world.files["one"] = "# comment\r\n\r\nA=1\r\n  B=x\n";
  CHECK(world.spec({"--env-file", "one", "--env", "B=y", "--env-file", "two", "w"}).explicit_env ==
        Env{{"A", "2"}, {"B", "y"}, {"C", "with spaces and = and \"quotes\"  "}, {"LAST", ""}});
  world.files["bad"] = "export A=1\nSECRET\n1x=hush\n";
  CHECK(world.errors({"--env-file", "bad", "--env-file", "nowhere", "w"}) ==
        Texts{"ddplaunch: bad:1:1: this file is not read by a shell; write NAME=VALUE without export",
              "ddplaunch: bad:2:1: expected NAME=VALUE",
              "ddplaunch: bad:3:1: the text before '=' is not the name of an environment variable",
              "ddplaunch: --env-file nowhere: No such file or directory"});
}

TEST_CASE("An environment that Linux can never pass is refused before anything starts") {
  FakeContext world;
  std::string vars;
  for (int i = 0; i < 66; ++i)
    vars += "V" + std::to_string(i) + '=' + std::string(100'000, 'x') + '\n';
  world.files["many"] = vars;
  CHECK(world.errors({"--env-file", "many", "w"}) ==
        Texts{"ddplaunch: arguments and environment have 6600858 bytes together, at most 6291456 can be "
              "passed; largest variables: V0 (100000 bytes), V1 (100000 bytes), V10 (100000 bytes)"});
  world.files["long"] = "V=" + std::string(131'070, 'x');
  CHECK(world.errors({"--env-file", "long", "w"}) ==
        Texts{"ddplaunch: environment variable V has 131072 bytes; Linux passes at most 131071 per "
              "variable; remove or shorten it"});
}

TEST_CASE("A file that is no text has a bounded number of errors") {
  FakeContext world;
  for (int line = 0; line < 100; ++line)
    world.files["program"] += "\x7f\x01 line\n";
  const Texts errors = world.errors({"--env-file", "program", "w"});
  REQUIRE(errors.size() == 6);
  CHECK(errors[4] == "ddplaunch: program:5:1: expected NAME=VALUE");
  CHECK(errors[5] == "ddplaunch: program: the rest is not read; is this a file of NAME=VALUE lines?");
}

TEST_CASE("A variable that ddplaunch sets for each worker has no effect, with a warning") {
  FakeContext world;
  world.files["file"] = "A=1\n  WORLD_SIZE=8\n";
  CHECK(world
            .job({"--env-file", "file", "--env", "RANK=7", "--env", "MASTER_ADDR=10.0.0.1", "--env",
                  "MASTER_PORT=1234", "--env", "OMP_NUM_THREADS=2", "w"})
            .notes ==
        Texts{"ddplaunch: warning: file:2:3: WORLD_SIZE has no effect: ddplaunch sets this variable for each "
              "worker",
              "ddplaunch: warning: --env RANK has no effect: ddplaunch sets this variable for each worker",
              "ddplaunch: warning: --env MASTER_ADDR has no effect: ddplaunch sets this variable for each "
              "worker; choose it with --network",
              "ddplaunch: warning: --env MASTER_PORT has no effect: ddplaunch sets this variable for each "
              "worker; choose it with --master-port"});
}

TEST_CASE("An env file may have a byte order mark, CR LF line ends, or UTF-16") {
  FakeContext world;
  world.files["dos"] = "\xEF\xBB\xBF# comment\r\nA=1\r\nB=2\r\n";
  CHECK(world.spec({"--env-file", "dos", "w"}).explicit_env == Env{{"A", "1"}, {"B", "2"}});
  world.files["dos"] =
      "\xEF\xBB\xBF"
      "A=1\r\n\xEF\xBB\xBF"
      "B=2\r\n";
  CHECK(world.errors({"--env-file", "dos", "w"}).size() == 1);
  world.files["wide"] = std::string(
      "\xFF\xFE"
      "A\0=\0",
      6);
  CHECK(world.errors({"--env-file", "wide", "w"}) ==
        Texts{"ddplaunch: wide:1:1: this is UTF-16 text; save the file as UTF-8 or plain ASCII"});
}

TEST_CASE(".deepspeed_env is read as by the shell in which DeepSpeed exports its lines") {
  FakeContext world;
  std::string& file = world.files["/home/ann/.deepspeed_env"];
  file =
      "A=$DATA/x\nB=${DATA}_y:$A\nC=\"two  words $DATA\" \nD='$DATA \"'\nE=~/a:~:b~\nF=\"~/a\"\nG=a\\$b\\ c\n"
      "H=plain text = # $ 5$\nI=\"\\$x\\y\\\"\"\nJ=\n";
  const ddp::RunJob job = world.job({"w"});
  CHECK(job.spec.explicit_env == Env{{"A", "/data/x"},
                                     {"B", "/data_y:/data/x"},
                                     {"C", "two  words /data"},
                                     {"D", "$DATA \""},
                                     {"E", "/home/ann/a:/home/ann:b~"},
                                     {"F", "~/a"},
                                     {"G", "a$b c"},
                                     {"H", "plain text = # $ 5$"},
                                     {"I", "$x\\y\""},
                                     {"J", ""}});
  CHECK(job.notes ==
        Texts{"ddplaunch: environment variables of /home/ann/.deepspeed_env are set for the workers"});
  // docker's format stays literal.
  world.files["file"] = "A=\"$DATA\"\n";
  CHECK(world.spec({"--env-file", "file", "w"}).explicit_env.front().second == "\"$DATA\"");
}

TEST_CASE("A value of .deepspeed_env that only a shell could compute stays as it is, with a warning") {
  FakeContext world;
  world.files["/home/ann/.deepspeed_env"] =
      "A=$(hostname)\n\n B=`date`\nC=${X:-1}\nD=~bob/x\nE=\"open\nF=a$NOT_SET-b${NOR_THIS}\n";
  const ddp::RunJob job = world.job({"w"});
  CHECK(job.spec.explicit_env == Env{{"A", "$(hostname)"},
                                     {"B", "`date`"},
                                     {"C", "${X:-1}"},
                                     {"D", "~bob/x"},
                                     {"E", "\"open"},
                                     {"F", "a-b"}});
  const std::string file = "ddplaunch: warning: /home/ann/.deepspeed_env:";
  const auto literal = [](const std::string& why, const std::string& name) {
    return " stays as it is written: " + why + "; write the result, or use --setup 'export " + name + "=…'";
  };
  REQUIRE(job.notes.size() == 7);
  CHECK(job.notes[0] == file + "1:1: the value of A" + literal("$(…) runs a command", "A"));
  CHECK(job.notes[1] == file + "3:2: the value of B" + literal("`…` runs a command", "B"));
  CHECK(job.notes[2] ==
        file + "4:1: the value of C" + literal("only ${NAME} is read, nothing else in ${…}", "C"));
  CHECK(job.notes[3] == file + "5:1: the value of D" + literal("~USER is the home of another account", "D"));
  CHECK(job.notes[4] == file + "6:1: the value of E" + literal("the quote \" is not closed", "E"));
  CHECK(job.notes[5] ==
        file +
            "7:1: the value of F has an unset variable, which counts as empty: NOT_SET, NOR_THIS "
            "(variables are those of this machine; --setup reads those of the node)");
}

TEST_CASE(".deepspeed_env of the current directory overrides the one of the home directory") {
  FakeContext world;
  world.files["/home/ann/.deepspeed_env"] = "A=home\nB=home\n";
  world.files["/data/run/.deepspeed_env"] = "B=here\nC=here\n";
  world.files["file"] = "C=file\n";
  const ddp::RunJob job = world.job({"--env-file", "file", "w"});
  CHECK(job.spec.explicit_env == Env{{"A", "home"}, {"B", "here"}, {"C", "file"}});
  CHECK(job.notes ==
        Texts{"ddplaunch: environment variables of /home/ann/.deepspeed_env are set for the workers",
              "ddplaunch: environment variables of /data/run/.deepspeed_env are set for the workers"});
  world.files["/data/run/.deepspeed_env"] = "unreadable";
  CHECK(world.errors({"w"}) == Texts{"ddplaunch: /data/run/.deepspeed_env: Permission denied"});
  world.cwd = "/home/ann";
  CHECK(world.job({"w"}).notes.size() == 1);
  world.files["/etc/ds"] = "D=1\n";
  world.env.emplace_back("DS_ENV_FILE", "/etc/ds");
  CHECK(world.spec({"w"}).explicit_env == Env{{"D", "1"}});
}
