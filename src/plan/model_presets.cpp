// See model_presets.h. The sizes are those of the published config.json files.
#include "hasten/plan/model_presets.h"

namespace hasten::plan {
namespace {

struct ModelPreset {
  const char* name;
  double layers, hidden, heads, kv_heads, ffn, vocabulary, sequence;
  bool gated, tied, causal;
};

constexpr ModelPreset kModelPresets[] = {
    {"gpt2", 12, 768, 12, 12, 3072, 50257, 1024, false, true, true},
    {"gpt2-medium", 24, 1024, 16, 16, 4096, 50257, 1024, false, true, true},
    {"gpt2-large", 36, 1280, 20, 20, 5120, 50257, 1024, false, true, true},
    {"gpt2-xl", 48, 1600, 25, 25, 6400, 50257, 1024, false, true, true},
    {"gpt-175b", 96, 12288, 96, 96, 49152, 51200, 2048, false, true, true},
    {"gpt-530b", 105, 20480, 128, 128, 81920, 51200, 2048, false, true, true},
    {"gpt-1t", 128, 25600, 160, 160, 102400, 51200, 2048, false, true, true},
    {"llama2-7b", 32, 4096, 32, 32, 11008, 32000, 4096, true, false, true},
    {"llama2-13b", 40, 5120, 40, 40, 13824, 32000, 4096, true, false, true},
    {"llama2-70b", 80, 8192, 64, 8, 28672, 32000, 4096, true, false, true},
    {"llama3-8b", 32, 4096, 32, 8, 14336, 128256, 8192, true, false, true},
    {"llama3-70b", 80, 8192, 64, 8, 28672, 128256, 8192, true, false, true},
    {"llama3-405b", 126, 16384, 128, 8, 53248, 128256, 8192, true, false, true},
    {"mistral-7b", 32, 4096, 32, 8, 14336, 32768, 8192, true, false, true},
    {"qwen2-7b", 28, 3584, 28, 4, 18944, 152064, 32768, true, false, true},
    {"qwen2-72b", 80, 8192, 64, 8, 29568, 152064, 32768, true, false, true},
    {"bert-base", 12, 768, 12, 12, 3072, 30522, 512, false, true, false},
    {"bert-large", 24, 1024, 16, 16, 4096, 30522, 512, false, true, false},
};

}  // namespace

std::optional<ModelShape> preset_model(const std::string& name) {
  for (const ModelPreset& preset : kModelPresets) {
    if (name != preset.name) continue;
    ModelShape shape;
    shape.name = name;
    shape.layers = preset.layers;
    shape.hidden = preset.hidden;
    shape.heads = preset.heads;
    shape.kv_heads = preset.kv_heads;
    shape.head_dim = preset.hidden / preset.heads;
    shape.ffn = preset.ffn;
    shape.vocabulary = preset.vocabulary;
    shape.sequence = preset.sequence;
    shape.gated = preset.gated;
    shape.tied = preset.tied;
    shape.causal = preset.causal;
    return shape;
  }
  return std::nullopt;
}

std::vector<std::string> preset_model_names() {
  std::vector<std::string> names;
  for (const ModelPreset& preset : kModelPresets) names.emplace_back(preset.name);
  return names;
}

}  // namespace hasten::plan
