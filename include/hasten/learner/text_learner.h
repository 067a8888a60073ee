// fastai's language_model_learner and text_classifier_learner: Learners over an AWD-LSTM (ULMFiT's two steps).
//
// The encoder of the first goes to the second: save_encoder(first, "encoder.safetensors"), then `.encoder =
// "encoder.safetensors"`. Both need one vocabulary (text_loaders.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "hasten/learner/learner.h"
#include "hasten/models/awd_lstm.h"

namespace hasten::learner {

struct TextLearnerOptions {
  /// `vocab` is needed: Vocab::size().
  models::AwdLstmOptions model = {};
  /// Settings of the classifier's head.
  models::AwdHeadOptions head = {};
  /// Scores of the classifier; 0: the classes of the loaders.
  int64_t classes = 0;
  /// Tokens that the classifier's encoder reads at a time.
  int64_t seq_len = 72;
  /// Weights of the encoder: what pretrained_path takes. Empty: drawn. fastai's files are read, too: what its
  /// save_encoder wrote, and a language model's such as wt103-fwd's lstm_fwd.pth, alone or in its folder.
  std::string encoder = {};
  /// SHA-256 of `encoder`, if it is an address.
  std::string sha256 = {};
  /// The words of fastai's file, its pickled list (itos_wt103.pkl). Empty: the one .pkl of the folder `encoder`. Rows
  /// go by their words then, and words that the file lacks get the mean of its rows. Needs `words`.
  std::string encoder_words = {};
  /// The words of the model: Vocab::words().
  std::vector<std::string> words = {};
  /// alpha and beta of RNNRegularizer.
  double activation = 2, temporal = 1;
  /// loss unset: the loaders', else cross entropy. Groups of a classifier: embedding, layers, head.
  LearnerOptions learner = {.splitter = models::awd_groups, .moms = {0.8, 0.7, 0.8}};
};

/// Returns a Learner that predicts the next token, with RNNCallback, RNNRegularizer and ModelResetter.
/// Blocks: on the weights. Throws: UsageError for a vocabulary without words; as pretrained_path and
/// checkpoint::load_weights.
Learner language_model_learner(Loaders loaders, TextLearnerOptions options);

/// Returns a Learner that predicts a text's class, with RNNCallback and RNNRegularizer. With an encoder's weights it is
/// frozen but for the head, as in fastai: fine_tune, or freeze_to step by step.
/// Blocks: on the weights. Throws: as above; UsageError without classes.
Learner text_classifier_learner(Loaders loaders, TextLearnerOptions options);

/// Writes the encoder of such a Learner's model, in safetensors (fastai's save_encoder).
/// Blocks: on the disk. Throws: UsageError for a model without an encoder; DataError.
void save_encoder(const Learner& learn, const std::filesystem::path& path);

}  // namespace hasten::learner
