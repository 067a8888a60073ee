// fastai's metrics by their names. Counts over samples, exact on any number of ranks (metric.h).
//
// If scikit-learn divides by nothing, values are 0 as there. Averages are over the classes that occur. `axis` is that
// of the classes.
#pragma once

#include <optional>
#include <string>

#include "hasten/learner/metric.h"

namespace hasten::learner {

// ---- One class a sample: predictions are scores [n, classes, …], targets classes [n, …].
Metric accuracy(int64_t axis = -1);
Metric error_rate(int64_t axis = -1);
Metric top_k_accuracy(int64_t k = 5, int64_t axis = -1);
/// Returns the mean recall of the classes that occur.
Metric balanced_accuracy(int64_t axis = -1);
/// (po - pe) / (1 - pe).
Metric cohen_kappa(int64_t axis = -1);
Metric hamming_loss(int64_t axis = -1);
Metric matthews_corr_coef(int64_t axis = -1);

enum class Averaging { kBinary, kMicro, kMacro, kWeighted };
struct ClassMetricOptions {
  Averaging average = Averaging::kBinary;
  int64_t axis = -1;
  /// The positive class of kBinary.
  int64_t pos_label = 1;
};
Metric f1_score(const ClassMetricOptions& options = {});
Metric fbeta(double beta, const ClassMetricOptions& options = {});
Metric precision(const ClassMetricOptions& options = {});
Metric recall(const ClassMetricOptions& options = {});
Metric jaccard(const ClassMetricOptions& options = {});

// ---- Several labels a sample: predictions and targets [n, labels].
struct MultiMetricOptions {
  double thresh = 0.5;
  bool sigmoid = true;
  /// kBinary is not meant for labels.
  Averaging average = Averaging::kMacro;
};
Metric accuracy_multi(double thresh = 0.5, bool sigmoid = true);
Metric f1_score_multi(const MultiMetricOptions& options = {});
Metric fbeta_multi(double beta, const MultiMetricOptions& options = {});
Metric precision_multi(const MultiMetricOptions& options = {});
Metric recall_multi(const MultiMetricOptions& options = {});
Metric jaccard_multi(const MultiMetricOptions& options = {});
Metric hamming_loss_multi(const MultiMetricOptions& options = {});
Metric matthews_corr_coef_multi(const MultiMetricOptions& options = {});

// ---- From all predictions, gathered once.
enum class MultiClass { kOvr, kOvo };
/// Area under the ROC curve of softmax scores, the mean over classes; ties count half.
Metric roc_auc(MultiClass multi_class = MultiClass::kOvr, int64_t axis = -1);
Metric roc_auc_binary(int64_t axis = -1);
Metric roc_auc_multi(bool sigmoid = true);
/// Sum of (R_n - R_(n-1)) P_n over the thresholds.
Metric ap_score_binary(int64_t axis = -1);
Metric ap_score_multi(bool sigmoid = true);
/// Returns the correlation of mean ranks.
Metric spearman_corr_coef();

// ---- Regression.
Metric mse_metric();
Metric mae_metric();
Metric msle_metric();
Metric rmse();
Metric exp_rmspe();
Metric r2_score();
Metric explained_variance();
Metric pearson_corr_coef();
/// Returns the mean of (p - t)^2 of the positive class's probability.
Metric brier_score(int64_t axis = -1, int64_t pos_label = 1);

// ---- Segmentation: predictions [n, classes, d1, …], targets [n, d1, …].
Metric dice_metric(int64_t axis = 1);
Metric dice_multi(int64_t axis = 1);
Metric jaccard_coeff(int64_t axis = 1);
Metric jaccard_coeff_multi(int64_t axis = 1);
/// Over the pixels that are no background (fastai averages batches).
Metric foreground_acc(int64_t bkg_idx = 0, int64_t axis = 1);

// ---- Text.
/// e to the mean loss.
Metric perplexity();
/// BLEU of corpora with n-grams up to 4. A sample's k-th order without a hit counts 1 / 2^k.
Metric corpus_bleu(int64_t vocab_size = 5000, int64_t axis = -1);

}  // namespace hasten::learner
