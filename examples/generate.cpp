// Generates text tokens with a language model of transformers: GPT-2, Llama, Mistral or Qwen2.
//
// examples/generate llama-7b --ids 1,15043,29892 --max-new-tokens 20
//
// Weights are mapped where they lie, so the first token comes at once; with --memory below the model's size they are
// streamed. A tokenizer is a program of its own: `CMD encode` turns text on its standard input into ids, `CMD decode`
// ids into text.
#include <hasten/core/error.h>
#include <hasten/models/generate.h>
#include <hasten/plan/memory_size.h>
#include <torch/torch.h>

#include <unistd.h>
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>

namespace {

std::vector<int64_t> numbers_in(std::string text) {
  for (char& c : text) {
    if (c == ',' || c == '[' || c == ']') c = ' ';
  }
  std::istringstream stream(text);
  std::vector<int64_t> numbers;
  for (int64_t number; stream >> number;) numbers.push_back(number);
  if (!stream.eof()) throw hasten::UsageError("'" + text + "' are no token ids. Give whole numbers with commas.");
  return numbers;
}

// What `command` prints if it reads `input`.
std::string filtered(const std::string& command, const std::string& input) {
  const auto path = std::filesystem::temp_directory_path() / ("hasten_generate_" + std::to_string(::getpid()));
  std::ofstream(path) << input;
  FILE* const pipe = ::popen((command + " < '" + path.string() + "'").c_str(), "r");
  if (pipe == nullptr) throw hasten::UsageError("cannot run '" + command + "'.");
  std::string output;
  char buffer[4096];
  for (size_t got; (got = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) output.append(buffer, got);
  const int status = ::pclose(pipe);
  std::filesystem::remove(path);
  if (status != 0) throw hasten::UsageError("'" + command + "' failed.");
  return output;
}

std::string ids_text(const at::Tensor& ids) {
  std::string text;
  for (int64_t i = 0; i < ids.numel(); ++i) text += (i == 0 ? "" : ",") + std::to_string(ids[i].item<int64_t>());
  return text;
}

struct Settings {
  std::string folder, ids, prompt, tokenizer, memory, eos;
  hasten::models::GenerateOptions generate;
  bool report = false;
};

int run(Settings settings) {
  using namespace hasten;
  offload::DispatchOptions load{.device_map = "auto"};
  if (!settings.memory.empty()) load.max_memory = {{"cpu", settings.memory}};
  auto model = models::CausalLm::from_folder(settings.folder, load);
  if (settings.report) std::cerr << model.dispatched().report().text();
  const std::string ids =
      settings.tokenizer.empty() ? settings.ids : filtered(settings.tokenizer + " encode", settings.prompt);
  const auto prompt = torch::tensor(numbers_in(ids), torch::kLong).unsqueeze(0);
  settings.generate.eos = numbers_in(settings.eos);
  const at::Tensor out = models::generate(model, prompt, settings.generate)[0];
  std::cout << (settings.tokenizer.empty() ? ids_text(out) + "\n"
                                           : filtered(settings.tokenizer + " decode", ids_text(out)));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app("Generates tokens with a language model of transformers");
  app.add_option("folder", settings.folder, "config.json and the weights")->required();
  app.add_option("--ids", settings.ids, "Token ids of the prompt, with commas");
  app.add_option("--prompt", settings.prompt, "Text of the prompt, for --tokenizer");
  app.add_option("--tokenizer", settings.tokenizer, "A program that encodes and decodes");
  app.add_option("--max-new-tokens", settings.generate.max_new_tokens, "Tokens to add");
  app.add_option("--temperature", settings.generate.temperature, "0: the most probable token");
  app.add_option("--top-k", settings.generate.top_k, "Sample among the k most probable tokens");
  app.add_option("--top-p", settings.generate.top_p, "Sample among the most probable tokens of this mass");
  app.add_option("--seed", settings.generate.seed, "Of the samples");
  app.add_option("--eos", settings.eos, "Token ids that end the text");
  app.add_option("--memory", settings.memory, "Memory that weights may take, such as 4GiB");
  app.add_flag("--report", settings.report, "Say where the weights are");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  try {
    return run(settings);
  } catch (const hasten::Error& error) {
    std::cerr << error.what() << "\n";
    return 2;
  }
}
