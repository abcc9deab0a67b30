// A step: the threads of the pool walk the sections; whoever finishes a section's last item
// prepares the next one, and runs it alone where it is too small to share.
#include <algorithm>
#include <chrono>
#include <cstring>

#include "program.h"

namespace twostroke {

namespace {
constexpr int64_t kRowTile = 8;          // rows of a row section without stored activations
constexpr int64_t kSplitValues = 4096;   // below it, splitting columns costs more than it saves
constexpr int64_t kSerialValues = 4096;  // likewise for rows
constexpr int64_t kColumnStep = 256;     // largest group of a weight format

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
}  // namespace

struct Program::Walk {
  ThreadPool& pool;
  KvPool& kv;
  const StepInputs& in;
  const StepOutputs& out;
  std::vector<int32_t> stale;  // new blocks with old bytes
  int section = -1;            // the one being run
  int first_wanted = 0;        // where a repeat for more rows starts
  int64_t row0 = 0;            // rows [row0, row0 + rows) of the wanted ones are being computed
  int64_t rows = 0;
  int64_t items = 0;
  int64_t columns = 0;    // of an item, when a row section is split by columns
  int64_t tile_rows = 0;  // of an item, when it is split by rows without stored activations
  double mark_s = 0;
};

int64_t Program::rows_of(const Walk& walk, Rows rows) const {
  return rows == Rows::tokens ? walk.in.num_tokens : walk.rows;
}

void Program::step(ThreadPool& pool, KvPool& kv, const StepInputs& in, const StepOutputs& out) {
  std::scoped_lock lock(busy_, pool.in_use());
  Walk walk{pool, kv, in, out, {}};
  begin(walk);
  struct Step final : Job {
    Program& program;
    Walk& walk;
    Step(Program& p, Walk& w) : program(p), walk(w) {}
    void item(int64_t item, int thread) override {
      program.run_item(walk, program.sections_[walk.section], item, thread);
    }
    bool advance() override { return program.advance(walk); }
  } job(*this, walk);
  pool.run(job);
}

void Program::begin(Walk& walk) {
  const StepInputs& in = walk.in;
  walk.stale = walk.kv.take_stale(in.new_blocks, in.num_new_blocks);
  for (int64_t i = 0; i < in.num_tokens; i++) walk.kv.mark_used(in.slots[i] / kBlockTokens);
  for (int64_t i = 0; i < in.num_copies; i++) walk.kv.mark_used(in.copies[i].target);
  walk.rows = std::min(in.num_rows, max_rows_);
  while (sections_[walk.first_wanted].rows != Rows::wanted) walk.first_wanted++;
  plan_attention(walk);
  reserve_scratch(walk, walk.pool.size());
  if (profiling_) walk.mark_s = now_s();
}

// Prepares the next section that has work for several threads, running small ones on the way.
// Returns false at the end of the step.
bool Program::advance(Walk& walk) {
  auto close = [&](Section& section) {
    const double now = now_s();
    section.seconds += now - walk.mark_s;
    section.calls++;
    walk.mark_s = now;
  };
  if (profiling_ && walk.section >= 0) close(sections_[walk.section]);
  for (;;) {
    if (++walk.section == static_cast<int>(sections_.size())) {
      walk.row0 += walk.rows;
      walk.rows = std::min(walk.in.num_rows - walk.row0, max_rows_);
      if (walk.rows <= 0) return false;
      walk.section = walk.first_wanted;
    }
    Section& section = sections_[walk.section];
    walk.items = prepare(walk, section);
    if (walk.items > 1 && walk.pool.size() > 1) {
      walk.pool.deal(walk.items, section.kind == SectionKind::attend ? Deal::queue : Deal::shares);
      return true;
    }
    for (int64_t item = 0; item < walk.items; item++) run_item(walk, section, item, 0);
    if (profiling_ && walk.items) close(section);
  }
}

int64_t Program::prepare(Walk& walk, Section& section) {
  const int64_t rows = rows_of(walk, section.rows);
  const int threads = walk.pool.size();
  switch (section.kind) {
    case SectionKind::prepare_kv:
      return walk.stale.empty() && !walk.in.num_copies ? 0 : walk.kv.num_layers();
    case SectionKind::attend:
      return prepare_attention(walk, section);
    case SectionKind::sample:
      return walk.out.logits || walk.in.samples ? rows : 0;
    case SectionKind::linear: {
      int64_t items = 0;
      for (LinearGroup& group : section.groups) {
        group.call.rows = rows;
        group.call.threads = threads;
        group.items = rows ? kernels_.linear_items(group.call) : 0;
        items += group.items;
      }
      return items;
    }
    case SectionKind::rows:
      break;
  }
  walk.columns = 0;
  if (!rows) return 0;
  int64_t tiles;
  if (section.acts.empty()) {
    const int64_t share =
        rows * section.width <= kSerialValues ? rows : (rows + threads - 1) / threads;
    walk.tile_rows =
        std::clamp<int64_t>(share, 1, rows * section.width <= kSerialValues ? rows : kRowTile);
    tiles = (rows + walk.tile_rows - 1) / walk.tile_rows;
  } else {
    tiles = kernels_.act_tiles(acts_[section.acts[0]].kind, rows);
  }
  if (tiles > 1 || !section.elementwise || threads == 1 || rows * section.width < kSplitValues)
    return tiles;
  const int64_t share = (section.width + threads - 1) / threads;
  walk.columns = (share + kColumnStep - 1) / kColumnStep * kColumnStep;
  return (section.width + walk.columns - 1) / walk.columns;
}

void Program::run_item(Walk& walk, Section& section, int64_t item, int thread) {
  switch (section.kind) {
    case SectionKind::prepare_kv:
      walk.kv.zero(item, walk.stale.data(), static_cast<int64_t>(walk.stale.size()));
      for (int64_t i = 0; i < walk.in.num_copies; i++) walk.kv.copy(item, walk.in.copies[i]);
      return;
    case SectionKind::rows:
      return run_rows(walk, section, item);
    case SectionKind::linear:
      return run_linear(section, item, thread);
    case SectionKind::attend:
      return run_attention(walk, section, item, thread);
    case SectionKind::sample:
      return run_sample(walk, item, thread);
  }
}

void Program::run_rows(Walk& walk, Section& section, int64_t item) {
  const int64_t rows = rows_of(walk, section.rows);
  int64_t tile = item, begin = 0, end = rows, column0 = 0, column1 = section.width;
  if (walk.columns) {
    tile = 0;
    column0 = item * walk.columns;
    column1 = std::min(section.width, column0 + walk.columns);
  } else if (section.acts.empty()) {
    begin = item * walk.tile_rows;
    end = std::min(rows, begin + walk.tile_rows);
  } else {
    kernels_.act_tile_range(acts_[section.acts[0]].kind, rows, tile, &begin, &end);
  }
  for (int64_t row = begin; row < end; row++)
    for (const Stage& stage : section.stages) {
      const bool split = walk.columns != 0;
      run_stage(walk, stage, row, split ? column0 : 0, split ? column1 : stage.width);
    }
  for (int id : section.acts) {
    const Acts& acts = acts_[id];
    const Buffer& source = buffers_[acts.source];
    const int64_t groups = (source.width + 31) / 32;
    kernels_.act_store(acts.data, acts.kind, source.data, source.ld, rows, source.width, tile,
                       column0 / 32, walk.columns ? (column1 + 31) / 32 : groups);
  }
}

void Program::run_stage(Walk& walk, const Stage& s, int64_t row, int64_t begin, int64_t end) {
  const Op& op = *s.op;
  float* out = s.out ? s.out + row * s.ldo : nullptr;
  const float* x = s.x ? s.x + row * s.ldx : nullptr;
  const float* y = s.y ? s.y + row * s.ldy : nullptr;
  const int64_t n = end - begin;
  switch (s.kind) {
    case OpKind::embed:
      return kernels_.embed_row(out, op.format, op.table + walk.in.token_ids[row] * op.row_bytes,
                                s.width, op.value);
    case OpKind::rms_norm:
      return kernels_.rms_norm(out, x, op.weight, s.width, op.value);
    case OpKind::head_norm:
      for (int64_t h = 0; h < s.width; h += op.head_dim)
        kernels_.rms_norm(out + h, x + h, op.weight, op.head_dim, op.value);
      return;
    case OpKind::rope: {
      const RopeTable& table = ropes_[op.rope];
      if (out != x) std::memcpy(out, x, static_cast<size_t>(s.width) * sizeof(float));
      return kernels_.rope(out, s.width / op.head_dim, op.head_dim, walk.in.positions[row],
                           {table.cos.data(), table.sin.data(), table.pairs, table.interleaved});
    }
    case OpKind::kv_append:
      return kernels_.kv_append(walk.kv.layer(op.layer), walk.in.slots[row], x, y);
    case OpKind::add:
      return kernels_.add(out + begin, x + begin, y + begin, n);
    case OpKind::gated:
      return kernels_.gated(out + begin, x + begin, y + begin, n, op.activation);
    case OpKind::soft_cap:
      if (out != x) std::memcpy(out + begin, x + begin, static_cast<size_t>(n) * sizeof(float));
      return kernels_.soft_cap(out + begin, n, op.value);
    case OpKind::take_rows: {
      const int64_t source = walk.in.logit_rows[walk.row0 + row];
      std::memcpy(out, s.x + source * s.ldx, static_cast<size_t>(s.width) * sizeof(float));
      return;
    }
    case OpKind::linear:
    case OpKind::attend:
      return;  // never stages
  }
}

void Program::run_linear(Section& section, int64_t item, int thread) {
  for (LinearGroup& group : section.groups) {
    if (item < group.items) return kernels_.linear_run(group.call, item, scratch_[thread]->data());
    item -= group.items;
  }
}

AttentionCall Program::attention_call(const Walk& walk, const Section& section) const {
  const Op& op = *section.attend.op;
  return {walk.kv.layer(op.layer), op.heads,        op.value, op.soft_cap, op.window, seqs_.data(),
          walk.in.num_seqs,        walk.pool.size()};
}

// Points seqs_ at the rows of this layer; q and out are not yet read here.
int64_t Program::prepare_attention(Walk& walk, Section& section) {
  const StepInputs& in = walk.in;
  const Stage& s = section.attend;
  for (int64_t i = 0; i < in.num_seqs; i++) {
    const int64_t row = in.cu_seqlens_q[i];
    seqs_[i] = {s.x + row * s.ldx,
                s.out + row * s.ldo,
                in.block_tables + i * in.table_stride,
                in.cu_seqlens_q[i + 1] - row,
                in.context_lens[i],
                s.ldx,
                s.ldo};
  }
  std::fill(done_.begin(), done_.end(), 0);
  return plans_[section.plan].count;
}

void Program::run_attention(Walk& walk, Section& section, int64_t item, int thread) {
  const AttentionPlan& plan = plans_[section.plan];
  // The item this thread will most likely take next, for prefetch only.
  const int64_t after = item + walk.pool.size();
  const AttentionItem* next = after < plan.count ? &plan.items[after] : nullptr;
  kernels_.attention_run(attention_call(walk, section), plan.items[item], next,
                         scratch_[thread]->data(), partials_.data(), done_.data());
}

void Program::plan_attention(Walk& walk) {
  const StepInputs& in = walk.in;
  seqs_.resize(static_cast<size_t>(in.num_seqs));
  std::vector<bool> planned(plans_.size());
  int64_t partials = 0;
  for (Section& section : sections_) {
    if (section.kind != SectionKind::attend || planned[section.plan]) continue;
    planned[section.plan] = true;
    AttentionPlan& plan = plans_[section.plan];
    plan.count = 0;
    if (!in.num_seqs) continue;
    done_.resize(static_cast<size_t>(in.num_seqs * walk.kv.layer(0).num_kv_heads));
    prepare_attention(walk, section);
    const AttentionCall call = attention_call(walk, section);
    plan.items.resize(static_cast<size_t>(kernels_.attention_max_items(call)));
    int64_t floats = 0;
    plan.count = kernels_.attention_plan(call, plan.items.data(), &floats);
    partials = std::max(partials, floats);
    // Long items first, so that no thread starts one when the others are done.
    const auto longer = [](const AttentionItem& a, const AttentionItem& b) {
      return a.cost > b.cost;
    };
    if (!std::is_sorted(plan.items.begin(), plan.items.begin() + plan.count, longer))
      std::stable_sort(plan.items.begin(), plan.items.begin() + plan.count, longer);
  }
  if (static_cast<int64_t>(partials_.size()) < partials) partials_.resize(partials);
}

// Scratch of every thread, as large as the largest section of this step asks for.
void Program::reserve_scratch(Walk& walk, int threads) {
  size_t need = kernels_.sample_scratch_bytes(vocab());
  for (Section& section : sections_) {
    const int64_t rows = rows_of(walk, section.rows);
    for (LinearGroup& group : section.groups) {
      group.call.rows = rows;
      group.call.threads = threads;
      if (rows) need = std::max(need, kernels_.linear_scratch_bytes(group.call));
    }
    if (section.kind == SectionKind::attend && walk.in.num_seqs)
      need = std::max(need, kernels_.attention_scratch_bytes(attention_call(walk, section)));
  }
  if (static_cast<int>(scratch_.size()) < threads) scratch_.resize(threads);
  for (auto& scratch : scratch_)
    if (!scratch || scratch->bytes() < need)
      scratch = std::make_unique<HugeMemory>(need + need / 4 + 64);
}

void Program::run_sample(Walk& walk, int64_t item, int thread) {
  const Buffer& logits = buffers_[logits_];
  const float* row = logits.data + item * logits.ld;
  const int64_t at = walk.row0 + item;
  if (walk.out.logits)
    std::memcpy(walk.out.logits + at * logits.width, row,
                static_cast<size_t>(logits.width) * sizeof(float));
  if (walk.in.samples)
    kernels_.sample(walk.out.samples + at, row, logits.width, walk.in.samples[at],
                    scratch_[thread]->data());
}

}  // namespace twostroke
