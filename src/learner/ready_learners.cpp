// Learners with a model of their own; see vision_learner.h and text_learner.h.
#include "hasten/checkpoint/weights.h"
#include "hasten/core/error.h"
#include "hasten/learner/callbacks/rnn.h"
#include "hasten/learner/pretrained.h"
#include "hasten/learner/text_learner.h"
#include "hasten/learner/vision_learner.h"
#include "learner/fastai_text.h"

namespace hasten::learner {
namespace {

void complete_loss(const Loaders& loaders, LearnerOptions& options) {
  if (!options.loss && !options.loss_of_all && !loaders.loss) options.loss = cross_entropy();
}

int64_t num_classes(const Loaders& loaders, const char* maker) {
  if (!loaders.vocab.empty()) return static_cast<int64_t>(loaders.vocab.size());
  throw UsageError({"learner"}, maker, " does not know how many classes there are: the loaders have no vocab. Set ",
                   "Loaders::vocab.");
}

void load_body(models::ResNet& net, const std::string& path) {
  const auto report = checkpoint::load_weights(*net, path, {.strict = false});
  for (const std::string& name : report.missing) {
    if (name.starts_with("head") || name.starts_with("fc")) continue;
    throw DataError({"learner"}, path, path, " has no '", name,
                    "', which the body needs; expected torchvision's names. Check layers and options, or rename.");
  }
}

// The encoder's weights, in this library's names or in fastai's.
void load_text_weights(torch::nn::Module& model, torch::nn::Module& encoder, const TextLearnerOptions& options) {
  const std::string path = pretrained_path(options.encoder, options.sha256);
  if (load_fastai_text(model, path, {.own = options.words, .file = options.encoder_words})) return;
  checkpoint::load_weights(encoder, path);
}

}  // namespace

Learner vision_learner(Loaders loaders, int64_t layers, VisionLearnerOptions options) {
  complete_loss(loaders, options.learner);
  auto net = models::resnet(layers, num_classes(loaders, "vision_learner"), options.model);
  const bool is_pretrained = !options.weights.empty();
  if (is_pretrained) load_body(net, pretrained_path(options.weights, options.sha256));
  Learner learn(std::move(loaders), net, std::move(options.learner));
  if (is_pretrained) learn.freeze();
  return learn;
}

Learner language_model_learner(Loaders loaders, TextLearnerOptions options) {
  complete_loss(loaders, options.learner);
  models::AwdLanguageModel model(options.model);
  if (!options.encoder.empty()) load_text_weights(*model, *model->encoder, options);
  Learner learn(std::move(loaders), model, std::move(options.learner));
  learn.add(ModelResetter(), RNNCallback(), RNNRegularizer(options.activation, options.temporal));
  return learn;
}

Learner text_classifier_learner(Loaders loaders, TextLearnerOptions options) {
  complete_loss(loaders, options.learner);
  const int64_t classes = options.classes > 0 ? options.classes : num_classes(loaders, "text_classifier_learner");
  models::AwdClassifier model(options.model, classes, options.seq_len, options.head);
  const bool is_pretrained = !options.encoder.empty();
  if (is_pretrained) load_text_weights(*model, *model->encoder, options);
  Learner learn(std::move(loaders), model, std::move(options.learner));
  learn.add(RNNCallback(), RNNRegularizer(options.activation, options.temporal));
  if (is_pretrained) learn.freeze();
  return learn;
}

void save_encoder(const Learner& learn, const std::filesystem::path& path) {
  const auto children = learn.model().module()->named_children();
  const auto* encoder = children.find("encoder");
  if (encoder == nullptr) {
    throw UsageError({"learner"},
                     "save_encoder of a model without a child 'encoder'; expected an AWD-LSTM of "
                     "language_model_learner or text_classifier_learner.");
  }
  checkpoint::save(**encoder, path.string(), {.safe_serialization = true});
}

}  // namespace hasten::learner
