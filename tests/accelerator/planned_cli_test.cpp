// The options that hasten plan prints start a run of the layout that it names, and what it measures here is a machine
// that it takes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "cli/command.h"
#include "hasten/accelerator.h"
#include "hasten/core/file.h"
#include "hasten/core/text.h"
#include "hasten/core/value.h"
#include "hasten/parallel/shard/sharding.h"
#include "hasten/plan/layout.h"
#include "support/folder.h"
#include "support/processes.h"

namespace hasten {
namespace {

using ::testing::HasSubstr;

HASTEN_PROCESS_CASE(planned_program) {
  const Accelerator accelerator(AcceleratorOptions{.cpu = true});
  const auto& given = accelerator.options().parallel;
  const auto& sharding = accelerator.sharding();
  accelerator.print("tp ", given.tp, " pp ", given.pp, " stage ",
                    sharding ? static_cast<int>(sharding->options().stage) : 0, " of ", accelerator.world_size());
  return 0;
}

struct Planned {
  const char* layout;
  const char* strategies;
  const char* said;
};

std::string hasten_command() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path() / "bin/hasten";
}

TEST(Planned, TheOptionsOfEachLayoutStartARunOfIt) {
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe");
  const std::string hasten = hasten_command();
  for (const auto& [layout, strategies, said] : {Planned{"tp=1,pp=1", "ddp", "tp 1 pp 1 stage 0 of 2\n"},
                                                 Planned{"tp=1,pp=1", "zero1", "tp 1 pp 1 stage 1 of 2\n"},
                                                 Planned{"tp=1,pp=1", "zero2", "tp 1 pp 1 stage 2 of 2\n"},
                                                 Planned{"tp=1,pp=1", "zero3", "tp 1 pp 1 stage 3 of 2\n"},
                                                 Planned{"tp=2,pp=1", "ddp", "tp 2 pp 1 stage 0 of 2\n"},
                                                 Planned{"tp=1,pp=2", "ddp", "tp 1 pp 2 stage 0 of 2\n"}}) {
    const auto planned =
        test::run_command({hasten, "plan", "gpt2", "--device", "cpu", "--devices", "2", "--batch", "8", "--sequence",
                           "64", "--json", "--layout", layout, "--strategies", strategies});
    ASSERT_EQ(planned.exit_code, 0) << layout << planned.err << planned.out;
    std::vector<std::string> words = {hasten, "launch", "--no_python", "--num_processes", "2"};
    const auto plan = core::Value::parse_json(planned.out);
    for (const auto& flag : plan.at("launch_flags").as_list()) words.push_back(flag.as_string());
    words.push_back(program);

    const auto run = test::run_command(words, {{"HASTEN_TEST_CASE", "planned_program"}});

    EXPECT_EQ(run.exit_code, 0) << layout << ' ' << strategies << run.err;
    EXPECT_THAT(run.out, HasSubstr(said)) << layout << ' ' << strategies;
  }
}

class Measured : public testing::InFolder {};

// With the pretend device preloaded, the processes that measure have it, too.
bool has_pretend_device() {
  const char* preloaded = std::getenv("LD_PRELOAD");
  return preloaded != nullptr && std::string(preloaded).find("hasten_pretend_device") != std::string::npos;
}

TEST_F(Measured, MachinesAreAFileThatThePlanTakes) {
  for (const char* processes : {"1", "2"}) {
    const std::string file = path(text("here", processes, ".json"));

    const auto run = test::run_command({hasten_command(), "plan", "--measure", "-n", processes, "-o", file});

    EXPECT_EQ(run.exit_code, 0) << run.out << run.err;
    EXPECT_THAT(run.out, HasSubstr("written to '" + file + "'"));
    EXPECT_THAT(run.out,
                HasSubstr(processes[0] == '1' ? "rates of links are a preset's" : " GB/s, all-reduce in a host "));
    const auto machine = core::Value::parse_json(core::read_file(file).value_or(""), file);
    for (const char* rate : {"peak_flops", "peak_flops_float32", "memory_bandwidth", "link_bandwidth", "memory_gib"})
      EXPECT_GT(machine.at(rate).as_double(), 0) << rate;
    const bool is_one_rate = machine.at("peak_flops").as_double() == machine.at("peak_flops_float32").as_double();
    EXPECT_EQ(is_one_rate, !has_pretend_device()) << "a device has a rate of bf16 and one of float32";
    EXPECT_EQ(machine.at("devices_per_host").as_double(), std::stod(processes));
    const auto& constants = machine.at("constants");
    const std::string source = text("measured on ", processes, processes[0] == '1' ? " process" : " processes");
    EXPECT_EQ(constants.at("attention_share").at("source").as_string(), source);
    const std::string other = has_pretend_device() ? "published fit" : "rated";
    EXPECT_EQ(constants.at("link_share").at("source").as_string(), processes[0] == '1' ? other : source);
    EXPECT_EQ(constants.at("score_passes").at("source").as_string(), other);
    EXPECT_GE(constants.at("product_share").at("residual").as_double(), 0);
    const auto planned = test::run_command({hasten_command(), "plan", "gpt2", "--cluster", file, "--devices", "2"});
    EXPECT_EQ(planned.exit_code, 0) << planned.err;
    EXPECT_THAT(planned.out, HasSubstr(has_pretend_device() ? "measured device" : "measured CPU"));
    EXPECT_THAT(planned.out, HasSubstr("; predicted from measured constants\n"));
  }
}

TEST_F(Measured, AFileThatCannotBeWrittenIsSaidBeforehand) {
  const auto run = test::run_command({hasten_command(), "plan", "--measure", "-o", path("nowhere/here.json")});

  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, HasSubstr("nowhere/here.json' cannot be written. Give -o a file in a folder that is there."));
  EXPECT_EQ(run.out, "");
}

}  // namespace
}  // namespace hasten
