// `hasten plan` as a program: tables, JSON, exit codes, files of machines and models, words for what is wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/command.h"
#include "support/folder.h"

namespace hasten::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class Plan : public testing::InFolder {
 protected:
  static CommandResult run(std::vector<std::string> words) {
    words.insert(words.begin(), {HASTEN_COMMAND, "plan"});
    return run_command(words);
  }
  static std::string refused(std::vector<std::string> words) {
    const CommandResult done = run(std::move(words));
    EXPECT_EQ(done.exit_code, 2) << done.out;
    return done.err;
  }
};

TEST_F(Plan, NamesTheLayoutToTakeAndWhyOthersLose) {
  const CommandResult done = run({"llama3-70b", "--devices", "256", "--batch", "1024"});

  EXPECT_EQ(done.exit_code, 0) << done.err;
  EXPECT_THAT(done.out, StartsWith("hasten plan: llama3-70b (70.5"));
  EXPECT_THAT(done.out,
              AllOf(HasSubstr("on 256 x H100 SXM 80GB, batch 1,024 x 8,192 tokens, bf16; predicted\n"),
                    HasSubstr("<- take: "), HasSubstr("  ddp 256  does not fit: "),
                    HasSubstr("hasten launch --num_processes 256 --num_machines 32 --mixed_precision bf16 --use_")));
  EXPECT_THAT(done.out, Not(HasSubstr("note:")));
}

std::string content_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// README leaves the columns behind the use of the devices out.
std::string without_seconds_by_kind(const std::string& table) {
  std::istringstream lines(table);
  std::string line, words;
  size_t width = std::string::npos;
  while (std::getline(lines, line) && !line.empty()) {
    const size_t last_column = line.find("MFU %");
    if (last_column != std::string::npos) width = last_column + 5;
    const size_t mark = line.find("  <- take");
    const bool is_row = line.find("does not fit") == std::string::npos && width != std::string::npos;
    words += (is_row ? line.substr(0, width) : line) + (mark == std::string::npos ? "" : line.substr(mark)) + '\n';
  }
  return words;
}

TEST_F(Plan, TheDocumentsShowWhatTheCommandPrints) {
  const CommandResult done = run({"llama3-70b", "--devices", "256", "--batch", "1024", "--top", "3"});
  const std::string command = "$ hasten plan llama3-70b --devices 256 --batch 1024 --top 3\n";

  EXPECT_THAT(content_of(HASTEN_SOURCE_DIR "/docs/plan.md"), HasSubstr(command + done.out + "```"));
  EXPECT_THAT(content_of(HASTEN_SOURCE_DIR "/README.md"),
              HasSubstr(command + without_seconds_by_kind(done.out) + "```"));
}

TEST_F(Plan, JsonHoldsWhatTheTableSays) {
  const CommandResult done = run({"llama3-8b", "--devices", "16", "--batch", "64", "--json", "--top", "3"});

  ASSERT_EQ(done.exit_code, 0) << done.err;
  const auto value = nlohmann::json::parse(done.out);
  EXPECT_GE(value["rows"].size(), 3u);
  EXPECT_LE(value["rows"].size(), 4u);
  double sum = 0;
  const auto& row = value["rows"][value["take"].get<size_t>()];
  for (const char* kind : {"products", "attention", "passes", "tensor", "context", "pipeline", "data", "update"})
    sum += row["seconds"][kind].get<double>();
  EXPECT_NEAR(sum, row["seconds"]["total"].get<double>(), 1e-9);
  EXPECT_EQ(value["numbers"], "predicted");
  EXPECT_FALSE(value["launch_flags"].empty());
}

TEST_F(Plan, ExitsWith3AndWhatIsMissingIfNothingFits) {
  const CommandResult done = run({"gpt-175b", "--devices", "8", "--device", "a100_40gb", "--batch", "8"});

  EXPECT_EQ(done.exit_code, 3);
  EXPECT_THAT(done.out,
              AllOf(HasSubstr("Nothing fits. The nearest is "), HasSubstr(" GiB more than 92 % of its memory")));
}

TEST_F(Plan, OneLayoutIsExplainedAndDrawn) {
  const CommandResult done = run({"llama3-8b", "--devices", "8", "--batch", "16", "--layout",
                                  "tp=2,pp=4,chunks=1,zero=ddp", "--micro_batch", "1", "--explain", "--draw"});

  EXPECT_EQ(done.exit_code, 0) << done.err;
  EXPECT_THAT(done.out, AllOf(HasSubstr("tp 2 pp 4"), HasSubstr("m = batch / (d b) = 16 / (1 x 1) = 16 microbatches"),
                              HasSubstr("rank 0 |F0"), HasSubstr("rank 3 |")));
}

TEST_F(Plan, ModelsComeFromConfigsFieldsTreesAndOptions) {
  write("net/config.json",
        R"({"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257})");
  write("fields.json",
        R"({"layers": 12, "hidden": 768, "heads": 12, "vocabulary": 50257, "sequence": 1024, "tied": true})");
  write(
      "tree.json",
      R"({"class": "Net", "children": [["fc", {"class": "Linear", "params": [{"name": "weight", "shape": [64, 32], "dtype": "float32"}]}]]})");
  const auto parameters = [&](std::vector<std::string> words) {
    words.insert(words.end(), {"--devices", "2", "--batch", "4", "--json"});
    const CommandResult done = run(words);
    EXPECT_EQ(done.exit_code, 0) << done.err;
    return nlohmann::json::parse(done.out)["model"]["parameters"].get<double>();
  };

  const double preset = parameters({"gpt2"});
  EXPECT_EQ(parameters({path("net")}), preset);
  EXPECT_EQ(parameters({path("net/config.json")}), preset);
  EXPECT_EQ(parameters({path("fields.json")}), preset);
  EXPECT_EQ(parameters({"--layers", "12", "--hidden", "768", "--heads", "12", "--vocabulary", "50257", "--sequence",
                        "1024", "--tied", "true"}),
            preset);
  EXPECT_LT(parameters({"gpt2", "--layers", "6"}), preset);
  EXPECT_EQ(parameters({path("tree.json")}), 64 * 32);
}

TEST_F(Plan, MachinesComeFromAFileAndItsNotesAreSaid) {
  write("box.json", R"({"device": "Box", "peak_flops": 1e14, "memory_bandwidth": 1e12, "memory_gib": 40,
    "devices_per_host": 4, "link_bandwidth": 1e11, "network_bandwidth": 1e10})");
  const CommandResult done = run({"gpt2", "--cluster", path("box.json"), "--devices", "6", "--batch", "12"});

  EXPECT_EQ(done.exit_code, 0) << done.err;
  EXPECT_THAT(done.out, AllOf(HasSubstr("6 x Box"), HasSubstr("predicted from rated figures"),
                              HasSubstr("note: The constants were fitted to A100 and H100"),
                              HasSubstr("note: 6 devices are no multiple of the 4 of a host")));
  write("broken.json", R"({"device": "Box", "peak_flops": 1e14,
    "memory_bandwidth": 2000})");
  EXPECT_THAT(run({"gpt2", "--cluster", path("broken.json")}).err,
              HasSubstr("broken.json, line 2: 'memory_bandwidth' is 2000 bytes a second"));
}

TEST_F(Plan, OptionsOfTheLayoutToTakeAreThoseOfALaunch) {
  for (const char* strategies : {"ddp", "zero1", "zero2", "zero3"}) {
    const CommandResult planned = run({"gpt2", "--device", "cpu", "--devices", "2", "--batch", "8", "--json",
                                       "--layout", "tp=1,pp=1", "--sequence", "64", "--strategies", strategies});
    ASSERT_EQ(planned.exit_code, 0) << planned.err << planned.out;
    std::vector<std::string> words = {HASTEN_COMMAND, "launch", "--no_python", "--cpu", "--num_processes", "2"};
    for (const auto& flag : nlohmann::json::parse(planned.out)["launch_flags"]) words.push_back(flag);
    words.push_back("/bin/true");

    const CommandResult started = run_command(words);

    EXPECT_EQ(started.exit_code, 0) << strategies << ": " << started.err;
  }
}

TEST_F(Plan, MistakesAreNamedWithTheRemedy) {
  EXPECT_THAT(refused({"124M"}), HasSubstr("is a number of parameters, which --memory takes"));
  EXPECT_THAT(refused({"llama3-7b"}), HasSubstr("did you mean"));
  EXPECT_THAT(refused({}), HasSubstr("--memory or a model"));
  EXPECT_THAT(refused({"gpt2", "--device", "h200"}), HasSubstr("'h200' is no device that is known"));
  EXPECT_THAT(refused({"gpt2", "--precision", "fp8"}), HasSubstr("FP8 is not modelled"));
  EXPECT_THAT(refused({"gpt2", "--layout", "pt=2"}), HasSubstr("'pt' is no part of a layout"));
  EXPECT_THAT(refused({"gpt2", "--layout", "tp=two"}), HasSubstr("tp is 'two'"));
  EXPECT_THAT(refused({"gpt2", "--layout", "tp=1,tp=2"}), HasSubstr("'tp' is given twice"));
  EXPECT_THAT(refused({"gpt2", "--layout", "sp=maybe"}), HasSubstr("sp is 'maybe'; expected true or false"));
  EXPECT_THAT(refused({"gpt2", "--tied", "maybe"}), HasSubstr("'maybe' is neither true nor false"));
  EXPECT_THAT(refused({"gpt2", "--devices", "8", "--batch", "8", "--layout", "tp=8"}),
              HasSubstr("tp may be 1, 2, 3, 4, 6, 12"));
  EXPECT_THAT(refused({"gpt2", "--strategies", "zero7"}), HasSubstr("'zero7' is no form of data parallelism"));
  EXPECT_THAT(refused({"gpt2", "--devices", "64", "--batch", "100", "--layout", "tp=1,pp=1,cp=1"}),
              HasSubstr("nearest that one divides are 64 and 128"));
}

}  // namespace
}  // namespace hasten::test
