// `hasten estimate-memory` on files of known headers.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "hasten/files/safetensors/safetensors_header.h"
#include "support/folder.h"
#include "support/http_server.h"

namespace hasten::test {
namespace {

class EstimateMemory : public testing::InFolder {
 protected:
  EstimateMemory() {
    using files::Dtype;
    const auto layout = files::lay_out_safetensors({{"0.weight", Dtype::kBFloat16, {10, 10}},
                                                    {"0.bias", Dtype::kBFloat16, {10}},
                                                    {"1.weight", Dtype::kBFloat16, {20, 10}},
                                                    {"1.bias", Dtype::kBFloat16, {20}}},
                                                   {}, 8);
    write("tiny/model.safetensors", layout.head + std::string(layout.file_bytes - layout.head.size(), '\0'));
  }
  static CommandResult run(std::vector<std::string> words, const std::map<std::string, std::string>& environment = {}) {
    words.insert(words.begin(), {HASTEN_COMMAND, "estimate-memory"});
    return run_command(words, environment);
  }
};

TEST_F(EstimateMemory, PrintsThePeersTable) {
  const auto result = run({path("tiny")});

  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out,
            "┌─────────────────────────────────────────────────────┐\n"
            "│           Memory Usage for loading `tiny`           │\n"
            "├───────┬─────────────┬───────────┬───────────────────┤\n"
            "│ dtype │Largest Layer│ Total Size│Training using Adam│\n"
            "├───────┼─────────────┼───────────┼───────────────────┤\n"
            "│float32│  880 bytes  │  1.29 KB  │      5.16 KB      │\n"
            "│float16│ 440.0 bytes │660.0 bytes│      2.58 KB      │\n"
            "│  int8 │ 220.0 bytes │330.0 bytes│        N/A        │\n"
            "│  int4 │ 110.0 bytes │165.0 bytes│        N/A        │\n"
            "└───────┴─────────────┴───────────┴───────────────────┘\n");
}

TEST_F(EstimateMemory, AsJsonWithAMapAndTheCache) {
  write(
      "tiny/config.json",
      R"({"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 8, "num_key_value_heads": 2})");

  const auto result = run({path("tiny"), "--json", "--dtypes", "float16", "--map", "1KB,1GB"});

  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto value = nlohmann::json::parse(result.out);
  EXPECT_EQ(value["total_bytes"], 1320);
  EXPECT_EQ(value["cache_bytes_per_token"], 2 * 2 * 2 * 2 * 2);
  EXPECT_EQ(value["dtypes"][0]["dtype"], "float16");
  EXPECT_EQ(value["device_map"], (nlohmann::json{{"", 0}})) << "660 bytes of float16 fit into 1 KB";
}

TEST_F(EstimateMemory, AMapHasALineForEachDevice) {
  // 660 bytes, of which the largest layer has 440. The first GPU keeps so much free.
  const auto result = run({path("tiny"), "--map", "0.65KB,0.3KB,1KB"});
  const auto json = run({path("tiny"), "--json", "--map", "0.65KB,0.1KB"});

  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("device  limit       weights    modules\n"
                            "0       650 bytes   0 bytes    -\n"
                            "1       300 bytes   220 bytes  0\n"
                            "cpu     1000 bytes  440 bytes  1\n"),
            std::string::npos)
      << result.out;
  const auto value = nlohmann::json::parse(json.out);
  ASSERT_EQ(value["devices"].size(), 3U) << json.out;
  EXPECT_EQ(value["devices"][2], nlohmann::json({{"device", "disk"},
                                                 {"limit_bytes", 0},
                                                 {"weight_bytes", 660},
                                                 {"modules", nlohmann::json::array({"the whole model"})}}));
}

TEST_F(EstimateMemory, ARepositoryOfAHubIsReadByRangesOfItsHeaders) {
  const auto layout =
      files::lay_out_safetensors({{"model.layers.0.weight", files::Dtype::kBFloat16, {1000, 2000}}}, {}, 8);
  const std::map<std::string, std::string> contents{
      {"config.json", R"({"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 8})"},
      {"model.safetensors", layout.head + std::string(layout.file_bytes - layout.head.size(), '\0')}};
  const testing::HttpServer server([&](const testing::HttpServerRequest& request) -> testing::HttpServerAnswer {
    if (request.path.starts_with("/api/models/org/tiny/tree/main")) {
      return {.body = R"([{"type": "file", "path": "config.json"}, {"type": "file", "path": "model.safetensors"}])"};
    }
    const auto file = contents.find(request.path.substr(request.path.rfind('/') + 1));
    if (!request.path.starts_with("/org/tiny/resolve/main/") || file == contents.end()) {
      return {.status = 404, .headers = "X-Error-Code: RepoNotFound\r\n"};
    }
    const auto range = request.headers.find("Range");
    if (range == request.headers.end()) return {.status = 500};
    const size_t size = file->second.size(),
                 end = std::min(size, std::stoul(range->second.substr(range->second.find('-') + 1)) + 1);
    return {.status = 206,
            .body = file->second.substr(0, end),
            .headers = "Content-Range: bytes 0-" + std::to_string(end - 1) + "/" + std::to_string(size) + "\r\n"};
  });
  const std::map<std::string, std::string> environment{
      {"HF_ENDPOINT", server.url()}, {"HF_HOME", path("home")}, {"NO_PROXY", "127.0.0.1"}};

  const auto result = run({"org/tiny", "--dtypes", "float16"}, environment);

  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("Memory Usage for loading `org/tiny`"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("3.81 MB"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("Key-value cache in 16 bits: 64 bytes a token"), std::string::npos) << result.out;
  EXPECT_FALSE(std::filesystem::exists(path("home")));
  EXPECT_NE(run({"org/none"}, environment).err.find("the repository 'org/none'"), std::string::npos);
}

TEST_F(EstimateMemory, BadInputIsNamed) {
  EXPECT_NE(run({path("none")}).err.find("is not there"), std::string::npos);
  EXPECT_EQ(run({path("none")}).exit_code, 2);
  EXPECT_NE(run({path("tiny"), "--dtypes", "float17"}).err.find("did you mean 'float16'?"), std::string::npos);
  EXPECT_EQ(run({}).exit_code, 2);
}

}  // namespace
}  // namespace hasten::test
