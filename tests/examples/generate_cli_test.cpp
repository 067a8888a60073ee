// examples/generate on folders that transformers wrote: its greedy tokens, also within a limit; sampling; errors.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/command.h"

namespace hasten::test {
namespace {

using nlohmann::json;

const std::string kGolden = HASTEN_SOURCE_DIR "/tests/golden";

CommandResult generate(const std::string& folder, const std::vector<std::string>& arguments) {
  std::vector<std::string> words{HASTEN_BINARY_DIR "/examples/generate", folder};
  words.insert(words.end(), arguments.begin(), arguments.end());
  return run_command(words);
}

std::string with_commas(const json& ids) {
  std::string text;
  for (const auto& id : ids) text += (text.empty() ? "" : ",") + std::to_string(id.get<int64_t>());
  return text;
}

json golden_case(const std::string& name) {
  std::ifstream file(kGolden + "/offload.json");
  const json all = json::parse(file);
  for (const auto& entry : all.at("cases")) {
    if (entry.at("case") == name) return entry;
  }
  return {};
}

TEST(GenerateExample, GivesTheGreedyTokensOfTransformers) {
  for (const std::string name : {"gpt2", "llama", "llama_sharded"}) {
    const json golden = golden_case("language_model/" + name);
    const auto steps = std::to_string(golden.at("input").at("greedy_steps").get<int>());
    const std::string folder = kGolden + "/" + golden.at("input").at("folder").get<std::string>();

    const auto result =
        generate(folder, {"--ids", with_commas(golden.at("input").at("greedy_prompt")), "--max-new-tokens", steps});

    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.out, with_commas(golden.at("input").at("greedy_prompt")) + "," +
                              with_commas(golden.at("expected").at("greedy")) + "\n")
        << name;
  }
}

TEST(GenerateExample, SaysWhereTheWeightsAreAndRepeatsASeed) {
  const std::string folder = kGolden + "/offload/lm_llama";
  const std::vector<std::string> sampled{"--ids",   "1,2,3", "--max-new-tokens", "8", "--temperature", "2",
                                         "--top-k", "50",    "--seed",           "4", "--report"};

  const auto one = generate(folder, sampled), other = generate(folder, sampled);

  EXPECT_EQ(one.exit_code, 0) << one.err;
  EXPECT_EQ(one.out, other.out);
  EXPECT_TRUE(one.out.starts_with("1,2,3,")) << one.out;
  EXPECT_TRUE(one.err.starts_with("model ")) << one.err;
}

TEST(GenerateExample, RunsATokenizerAsAFilter) {
  std::string folder = ::testing::TempDir() + "generate_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  // Letters are their numbers in the alphabet.
  std::ofstream(folder + "/letters.sh")
      << "if [ $1 = encode ]; then tr 'abc' '123' | sed 's/./&,/g'; else sed 's/^/decoded: /'; fi\n";

  const auto result =
      generate(kGolden + "/offload/lm_llama",
               {"--prompt", "abc", "--tokenizer", "sh " + folder + "/letters.sh", "--max-new-tokens", "2"});
  std::filesystem::remove_all(folder);

  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(result.out.starts_with("decoded: 1,2,3,")) << result.out;
}

TEST(GenerateExample, BadInputIsNamed) {
  const auto no_folder = generate("/nowhere/at/all", {"--ids", "1"});
  EXPECT_EQ(no_folder.exit_code, 2);
  EXPECT_NE(no_folder.err.find("config.json"), std::string::npos) << no_folder.err;
  const auto no_prompt = generate(kGolden + "/offload/lm_llama", {});
  EXPECT_EQ(no_prompt.exit_code, 2);
  EXPECT_NE(no_prompt.err.find("prompt"), std::string::npos) << no_prompt.err;
  const auto outside = generate(kGolden + "/offload/lm_llama", {"--ids", "1,97"});
  EXPECT_EQ(outside.exit_code, 2);
  EXPECT_NE(outside.err.find("97"), std::string::npos) << outside.err;
}

}  // namespace
}  // namespace hasten::test
