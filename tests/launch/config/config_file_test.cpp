#include "hasten/launch/config/config_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "hasten/core/error.h"

namespace hasten::launcher {
namespace {

namespace fs = std::filesystem;

class ConfigFile : public ::testing::Test {
 protected:
  ConfigFile() {
    std::string name = ::testing::TempDir() + "hasten_config_XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  ~ConfigFile() override { fs::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& content) const {
    std::ofstream(folder_ + "/" + name) << content;
    return folder_ + "/" + name;
  }
  // The message about a file with this content, without the file's path.
  std::string refused(const std::string& name, const std::string& content) const {
    const std::string path = write(name, content);
    try {
      load_config(path);
    } catch (const UsageError& error) {
      std::string message = error.what();
      for (size_t at = message.find(path); at != std::string::npos; at = message.find(path)) {
        message.replace(at, path.size(), "FILE");
      }
      return message;
    }
    return "";
  }
  const std::string& folder() const { return folder_; }

 private:
  std::string folder_;
};

constexpr const char* kAdvice = " Correct the file, or write a new one with hasten config.";

TEST_F(ConfigFile, AnswersUnknownKeysWithTheNearest) {
  EXPECT_EQ(refused("c.yaml", "distributed_type: 'NO'\nnum_proceses: 2\n"),
            std::string("[config] FILE: unknown key 'num_proceses', did you mean 'num_processes'?") + kAdvice);
}

TEST_F(ConfigFile, AnswersUnknownKeysOfSectionsWithTheNearest) {
  EXPECT_EQ(
      refused("c.yaml", "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stag: 3}\n"),
      std::string("[config] FILE: unknown key 'deepspeed_config.zero_stag', did you mean 'zero_stage'?") + kAdvice);
  EXPECT_EQ(
      refused("c.json", R"({"distributed_type": "FSDP", "fsdp_config": {"fsdp_versio": 2}})"),
      std::string("[config] FILE: unknown key 'fsdp_config.fsdp_versio', did you mean 'fsdp_version'?") + kAdvice);
  EXPECT_EQ(refused("c.yaml", "distributed_type: 'NO'\ndynamo_config: {dynamo_backend: 'NO', what: 1}\n"),
            std::string("[config] FILE: unknown key 'dynamo_config.what'.") + kAdvice);
}

TEST_F(ConfigFile, KeysOfSectionsMayLackThePrefixOrBeThoseOfTheInterviewAndOfOlderReleases) {
  EXPECT_EQ(refused("c.yaml",
                    "distributed_type: FSDP\nfsdp_config: {version: 2, fsdp_backward_prefetch_policy: BACKWARD_PRE}\n"
                    "fp8_config: {backend: TE, amax_history_length: 16, amax_compute_algorithm: max}\n"
                    "mpirun_config: {mpirun_hostfile: hosts}\n"),
            "");
}

TEST_F(ConfigFile, AKeyThatOlderReleasesHadIsRefusedWithTodaysWay) {
  EXPECT_EQ(
      refused("c.yaml", "distributed_type: 'NO'\nipex_config: {ipex: true}\n"),
      std::string("[config] FILE: unknown key 'ipex_config'; Accelerate has removed Intel's extension; take it out.") +
          kAdvice);
}

TEST_F(ConfigFile, TellsAllThatIsWrongAtOnce) {
  EXPECT_EQ(refused("c.yaml",
                    "distributed_type: MULTI_GPUS\nmachine_rank: -3\nmain_process_port: abc\nuse_cpu: 7\n"
                    "fsdp_config: hello\nwhat: 1\n"),
            "[config] 6 things are wrong:\n"
            "  FILE: unknown key 'what'\n"
            "  FILE: 'machine_rank: -3' is less than 0\n"
            "  FILE: 'main_process_port: abc' is no whole number\n"
            "  FILE: 'fsdp_config' is no mapping of keys to values\n"
            "  FILE: 'distributed_type: MULTI_GPUS' is not one of NO, MULTI_CPU, MULTI_GPU, MULTI_NPU, MULTI_MLU, "
            "MULTI_SDAA, MULTI_MUSA, MULTI_XPU, DEEPSPEED, FSDP, XLA, MULTI_HPU, MEGATRON_LM, MULTI_NEURON, did "
            "you "
            "mean 'MULTI_GPU'?\n"
            "  FILE: 'use_cpu: 7' is neither true nor false\n"
            "Correct the file, or write a new one with hasten config.");
}

TEST_F(ConfigFile, SaysWhereTheNotationIsBroken) {
  EXPECT_EQ(refused("c.yaml", "a: 1\na: 2\n"),
            std::string("[config] FILE: 'a' stands there twice, again in line 2.") + kAdvice);
  EXPECT_EQ(refused("c.yaml", "a:\n\tb: 1\n"), std::string("[config] FILE: a tab in line 2; use blanks.") + kAdvice);
  EXPECT_EQ(refused("c.yaml", "hello\n"),
            std::string("[config] FILE: it holds no mapping of keys to values.") + kAdvice);
  EXPECT_EQ(refused("c.json", "{\"a\": 1,}"), std::string("[config] FILE: it is no JSON (at byte 9).") + kAdvice);
  EXPECT_EQ(refused("c.json", "{\"a\": 1, \"a\": 2}"), std::string("[config] FILE: 'a' stands there twice.") + kAdvice);
  EXPECT_EQ(refused("c.yaml", "a: [1\n"),
            std::string("[config] FILE: line 2, column 1: end of sequence flow not found.") + kAdvice);
}

TEST_F(ConfigFile, RefusesBytesAndNumbersThatPythonCannotRead) {
  EXPECT_EQ(refused("c.yaml", "a: 1 # \xed\xa0\x80\n"), std::string("[config] FILE: byte 7 is no UTF-8.") + kAdvice);
  EXPECT_EQ(refused("c.yaml", "a: 1 # \xc0\x80\n"), std::string("[config] FILE: byte 7 is no UTF-8.") + kAdvice);
  EXPECT_EQ(refused("c.yaml", "a: 1 # \xf4\x90\x80\x80\n"),
            std::string("[config] FILE: byte 7 is no UTF-8.") + kAdvice);
  EXPECT_EQ(refused("c.yaml", "a: 1 # \xc2\x80\n"),
            std::string("[config] FILE: byte 7 is a control character.") + kAdvice);
  EXPECT_EQ(refused("c.yaml", "a: 1\t# x\n"), std::string("[config] FILE: a tab in line 1; use blanks.") + kAdvice);
  EXPECT_EQ(refused("c.json", "\xef\xbb\xbf{}"),
            std::string("[config] FILE: it begins with a byte order mark, which is no JSON.") + kAdvice);
  EXPECT_EQ(refused("c.json", "{\"a\": 12345678901234567890}"),
            std::string("[config] FILE: the number 12345678901234567890 is too large.") + kAdvice);
  EXPECT_EQ(refused("c.json", "{\"a\": 1e400}"),
            std::string("[config] FILE: the number 1e400 is too large.") + kAdvice);
}

TEST_F(ConfigFile, ReadsValuesAsPyYamlDoes) {
  const std::string path =
      write("c.yaml",
            "distributed_type: FSDP\rfp16: 1\rfsdp_config:\r  fsdp_version: {b: {}}\rcommands:\r- !!float 5\r"
            "- '2020-01-01'\r- \"x\\n y\"\r- 12345678901234567890\r"
            "tpu_env: [0x10, 010, 1_000, 1e3, 1.0e+3, .5, .inf, 12:30:45, 0o17, +7, -0, 1.]\r");

  const Config config = load_config(path);

  EXPECT_EQ(config.values.at("mixed_precision"), "fp16");
  EXPECT_NE(to_yaml(config.values).find("commands:\n- 5.0\n- '2020-01-01'\n- \"x\\n y\"\n- 12345678901234567890\n"),
            std::string::npos)
      << to_yaml(config.values);
  EXPECT_NE(to_yaml(config.values).find("fsdp_config:\n  fsdp_version:\n    b: null\n"), std::string::npos);
  EXPECT_NE(
      to_yaml(config.values)
          .find("tpu_env:\n- 16\n- 8\n- 1000\n- 1e3\n- 1000.0\n- 0.5\n- .inf\n- 45045\n- 0o17\n- 7\n- 0\n- 1.0\n"),
      std::string::npos)
      << to_yaml(config.values);
}

TEST_F(ConfigFile, SaysThatThereIsNone) {
  try {
    load_config("/nowhere/c.yaml");
    FAIL() << "no error";
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(),
                 "[config] the configuration file '/nowhere/c.yaml' does not exist. Write one with hasten config, or "
                 "name another with --config_file.");
  }
}

TEST_F(ConfigFile, SaysThatAFolderIsNone) {
  try {
    load_config(folder());
    FAIL() << "no error";
  } catch (const UsageError& error) {
    EXPECT_EQ(error.what(), "[config] the configuration file '" + folder() + "' is a folder. Name a file in it.");
  }
}

TEST_F(ConfigFile, WhatIsSavedIsReadBackTheSame) {
  const core::Value::Map values = {
      {"distributed_type", {std::string("NO")}},
      {"commands", {core::Value::List{{std::string("a: b")}, {std::string("- c\nd")}, {std::string("")}}}},
      {"deepspeed_config",
       {core::Value::Map{{"zero_stage", {1e-7}}, {"deepspeed_config_file", {std::string("\xc3\xa9 'q' \"p\"")}}}}}};
  const std::string yaml = folder() + "/new/c.yaml", json = folder() + "/new/c.json";

  save_config(values, yaml);
  save_config(values, json);

  EXPECT_EQ(to_json(load_config(yaml).values), to_json(load_config(json).values));
  EXPECT_EQ(to_json(load_config(yaml).given), to_json(values));
}

TEST_F(ConfigFile, ValuesAreWrittenAsPythonWritesThem) {
  EXPECT_EQ(python_text({true}), "True");
  EXPECT_EQ(python_text({1000.0}), "1000.0");
  EXPECT_EQ(python_text({1e-5}), "1e-05");
  EXPECT_EQ(python_text({1e16}), "1e+16");
  EXPECT_EQ(python_text({core::Value::List{{false}, {int64_t{2}}}}), "False,2");
  EXPECT_EQ(python_text({}), "");
}

}  // namespace
}  // namespace hasten::launcher
