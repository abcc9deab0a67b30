// From recorded ops to sections: rows nobody wants are dropped, row-wise neighbours fuse, buffers
// share one arena.
#include <algorithm>
#include <stdexcept>

#include "program.h"

namespace twostroke {

namespace {
constexpr size_t kAlign = 256;  // of arena pieces; also the slack a vector read may run over

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

bool is_elementwise(OpKind kind) {
  return kind == OpKind::add || kind == OpKind::gated || kind == OpKind::soft_cap;
}

bool runs_in_place(OpKind kind) {
  return is_elementwise(kind)
             ? kind != OpKind::gated
             : kind == OpKind::rms_norm || kind == OpKind::head_norm || kind == OpKind::rope;
}

// Ops whose row depends on the same row of their inputs alone, so that they may run on fewer rows.
bool narrows(OpKind kind) {
  return is_elementwise(kind) || kind == OpKind::rms_norm || kind == OpKind::head_norm ||
         kind == OpKind::linear;
}

const char* name_of(OpKind kind) {
  static const char* const names[] = {"embed",     "rms_norm", "head_norm", "rope",
                                      "kv_append", "add",      "gated",     "soft_cap",
                                      "take_rows", "linear",   "attend"};
  return names[static_cast<int>(kind)];
}

Section new_rows(Rows rows) {
  Section section{};
  section.kind = SectionKind::rows;
  section.rows = rows;
  return section;
}
}  // namespace

void Program::compile(BufferId logits) {
  if (logits_ >= 0) throw std::invalid_argument("the program is compiled already");
  if (logits < 0 || logits >= static_cast<BufferId>(buffers_.size()) ||
      buffers_[logits].rows != Rows::wanted)
    throw std::invalid_argument("the result of a program must come after take_rows");
  logits_ = logits;
  narrow_to_wanted();
  build_sections();
  find_lifetimes();
  alias_in_place();
  place_arena();
  resolve();
}

// Moves take_rows up: an op whose results only wanted rows read runs on the wanted rows alone. The
// last layer's projections and MLP shrink to the rows that are sampled; no bit changes.
void Program::narrow_to_wanted() {
  std::vector<std::vector<int>> readers(buffers_.size());
  for (size_t i = 0; i < ops_.size(); i++)
    for (BufferId id : ops_[i].in) readers[id].push_back(static_cast<int>(i));
  std::vector<bool> narrow(ops_.size());
  for (size_t i = ops_.size(); i-- > 0;) {
    Op& op = ops_[i];
    if (op.rows == Rows::wanted || !narrows(op.kind)) continue;
    bool wanted = true, read = false;
    for (BufferId id : op.out)
      for (int reader : readers[id]) {
        read = true;
        wanted &= narrow[reader] || ops_[reader].kind == OpKind::take_rows;
      }
    narrow[i] = wanted && read;
  }
  std::vector<Op> ops;
  std::vector<BufferId> taken(buffers_.size(), -1);  // T buffer -> its wanted rows
  for (size_t i = 0; i < ops_.size(); i++) {
    Op op = std::move(ops_[i]);
    if (narrow[i]) {
      op.rows = Rows::wanted;
      for (BufferId id : op.out) buffers_[id].rows = Rows::wanted;
    }
    const bool take = op.kind == OpKind::take_rows;
    if (op.rows == Rows::wanted)
      for (BufferId& id : op.in) {
        if (buffers_[id].rows == Rows::wanted || take) continue;
        if (taken[id] < 0) {
          taken[id] = static_cast<BufferId>(buffers_.size());
          Buffer copy = buffers_[id];
          copy.rows = Rows::wanted;
          buffers_.push_back(copy);
          Op rows{};
          rows.kind = OpKind::take_rows;
          rows.rows = Rows::wanted;
          rows.in = {id};
          rows.out = {taken[id]};
          ops.push_back(std::move(rows));
        }
        id = taken[id];
      }
    if (take && buffers_[op.in[0]].rows == Rows::wanted) {
      // Nothing left to take: later ops read the narrowed buffer itself.
      for (size_t j = i + 1; j < ops_.size(); j++)
        std::replace(ops_[j].in.begin(), ops_[j].in.end(), op.out[0], op.in[0]);
      if (logits_ == op.out[0]) logits_ = op.in[0];
      continue;
    }
    ops.push_back(std::move(op));
  }
  // Ops on all tokens first: the others repeat when more rows are wanted than fit at once.
  std::stable_partition(ops.begin(), ops.end(),
                        [](const Op& op) { return op.rows == Rows::tokens; });
  ops_ = std::move(ops);
}

Section& Program::row_section(Rows rows) {
  if (sections_.back().kind != SectionKind::rows || sections_.back().rows != rows)
    sections_.push_back(new_rows(rows));
  return sections_.back();
}

bool Program::same_tiles(ActKind a, ActKind b) const {
  for (int64_t rows = 1; rows <= max_tokens_; rows++) {
    if (kernels_.act_tiles(a, rows) != kernels_.act_tiles(b, rows)) return false;
    for (int64_t tile = 0; tile < kernels_.act_tiles(a, rows); tile++) {
      int64_t a0, a1, b0, b1;
      kernels_.act_tile_range(a, rows, tile, &a0, &a1);
      kernels_.act_tile_range(b, rows, tile, &b0, &b1);
      if (a0 != b0 || a1 != b1) return false;
    }
    if (rows >= 64 && rows < max_tokens_) rows = max_tokens_ - 1;
  }
  return true;
}

// The stored rows of `source` in the kind a matrix wants, appended to the section before it.
int Program::acts_for(const Op& op, BufferId source, ActKind kind) {
  for (size_t i = 0; i < acts_.size(); i++)
    if (acts_[i].source == source && acts_[i].kind == kind) return static_cast<int>(i);
  Acts acts{};
  acts.source = source;
  acts.kind = kind;
  const int64_t rows = op.rows == Rows::tokens ? max_tokens_ : max_rows_;
  for (int64_t r = 1; r <= rows; r++)  // fewer rows in uneven tiles could take more room
    acts.bytes = std::max(acts.bytes, kernels_.act_bytes(kind, r, buffers_[source].width));
  Section* section = &row_section(op.rows);
  if (!section->acts.empty() && !same_tiles(acts_[section->acts[0]].kind, kind)) {
    sections_.push_back(new_rows(op.rows));
    section = &sections_.back();
  }
  if (section->width && section->width != buffers_[source].width) section->elementwise = false;
  section->width = buffers_[source].width;
  section->label += section->label.empty() ? "store" : "+store";
  section->acts.push_back(static_cast<int>(acts_.size()));
  acts_.push_back(acts);
  return static_cast<int>(acts_.size()) - 1;
}

void Program::add_row_op(const Op& op) {
  // What is stored already must not be followed by stages of the same section.
  if (!sections_.back().acts.empty()) sections_.push_back(new_rows(op.rows));
  Section& section = row_section(op.rows);
  Stage stage{};
  stage.kind = op.kind;
  stage.op = &op;
  stage.out_id = op.out.empty() ? -1 : op.out[0];
  stage.x_id = op.in.empty() ? -1 : op.in[0];
  stage.y_id = op.in.size() > 1 ? op.in[1] : -1;
  stage.width = buffers_[op.out.empty() ? op.in[0] : op.out[0]].width;
  section.elementwise &=
      is_elementwise(op.kind) && (!section.width || section.width == stage.width);
  section.width = std::max(section.width, stage.width);
  if (!section.label.empty()) section.label += '+';
  section.label += name_of(op.kind);
  section.stages.push_back(stage);
}

void Program::add_linear(const Op& op) {
  Section linear{};
  linear.kind = SectionKind::linear;
  linear.rows = op.rows;
  linear.label = op.name;
  for (size_t i = 0; i < op.mats.size(); i++) {
    const int acts = acts_for(op, op.in[0], kernels_.act_kind(op.mats[i].format));
    auto group = std::find_if(linear.groups.begin(), linear.groups.end(),
                              [&](const LinearGroup& g) { return g.acts == acts; });
    if (group == linear.groups.end()) {
      linear.groups.emplace_back();
      group = linear.groups.end() - 1;
      group->acts = acts;
    }
    group->out_ids.push_back(op.out[i]);
    group->mats.push_back(op.mats[i]);
    group->biases.push_back(op.biases[i]);
  }
  sections_.push_back(std::move(linear));
}

void Program::add_attention(const Op& op) {
  Section attend{};
  attend.kind = SectionKind::attend;
  attend.label = op.window ? "attend_window" : "attend";
  attend.attend.kind = op.kind;
  attend.attend.op = &op;
  attend.attend.x_id = op.in[0];
  attend.attend.out_id = op.out[0];
  for (size_t i = 0; i < plans_.size(); i++)
    if (plans_[i].heads == op.heads && plans_[i].window == op.window)
      attend.plan = static_cast<int>(i);
  if (attend.plan < 0) {
    attend.plan = static_cast<int>(plans_.size());
    plans_.push_back({op.heads, op.window, {}, 0});
  }
  sections_.push_back(std::move(attend));
}

void Program::build_sections() {
  Section prepare{};
  prepare.kind = SectionKind::prepare_kv;
  prepare.label = "prepare_kv";
  sections_.push_back(std::move(prepare));
  for (const Op& op : ops_) {
    if (op.kind == OpKind::linear)
      add_linear(op);
    else if (op.kind == OpKind::attend)
      add_attention(op);
    else
      add_row_op(op);
  }
  Section sample{};
  sample.kind = SectionKind::sample;
  sample.rows = Rows::wanted;
  sample.label = "sample";
  sections_.push_back(std::move(sample));
}

void Program::find_lifetimes() {
  const int end = static_cast<int>(sections_.size()) - 1;
  auto write = [&](BufferId id, int s) {
    if (id >= 0 && buffers_[id].first < 0) buffers_[id].first = s;
    if (id >= 0) buffers_[id].last = std::max(buffers_[id].last, s);
  };
  auto read = [&](BufferId id, int s) {
    if (id < 0) return;
    // The sections after take_rows may repeat: what they read of all tokens lives to the end.
    const bool repeats = sections_[s].rows == Rows::wanted && buffers_[id].rows == Rows::tokens;
    buffers_[id].last = std::max(buffers_[id].last, repeats ? end : s);
  };
  for (int s = 0; s <= end; s++) {
    const Section& section = sections_[s];
    for (const Stage& stage : section.stages) {
      read(stage.x_id, s);
      read(stage.y_id, s);
      write(stage.out_id, s);
    }
    for (int acts : section.acts) {
      read(acts_[acts].source, s);
      acts_[acts].first = acts_[acts].last = s;
    }
    for (const LinearGroup& group : section.groups) {
      acts_[group.acts].last = s;
      for (BufferId id : group.out_ids) write(id, s);
    }
    if (section.kind == SectionKind::attend) {
      read(section.attend.x_id, s);
      write(section.attend.out_id, s);
    }
  }
  buffers_[logits_].last = end;
}

// Lets an op write over its first input where nobody reads that input afterwards.
void Program::alias_in_place() {
  std::vector<int> last_reader(buffers_.size(), -1);
  for (size_t i = 0; i < ops_.size(); i++)
    for (BufferId id : ops_[i].in) last_reader[id] = static_cast<int>(i);
  const int end = static_cast<int>(sections_.size()) - 1;
  for (size_t i = 0; i < ops_.size(); i++) {
    const Op& op = ops_[i];
    if (!runs_in_place(op.kind) || last_reader[op.in[0]] != static_cast<int>(i)) continue;
    if (op.in.size() > 1 && op.in[0] == op.in[1]) continue;
    Buffer& out = buffers_[op.out[0]];
    BufferId root = op.in[0];
    while (buffers_[root].alias >= 0) root = buffers_[root].alias;
    Buffer& in = buffers_[root];
    if (in.rows != out.rows || in.ld != out.ld || op.in[0] == logits_) continue;
    if (in.rows == Rows::tokens && in.last == end) continue;  // read again by a repeated section
    out.alias = root;
    in.last = std::max(in.last, out.last);
  }
}

void Program::place_arena() {
  struct Piece {
    int first, last;
    size_t bytes;
    size_t* offset;
  };
  std::vector<Piece> pieces;
  for (Buffer& b : buffers_) {
    if (b.alias >= 0 || b.first < 0) continue;
    b.bytes = static_cast<size_t>((b.rows == Rows::tokens ? max_tokens_ : max_rows_) * b.ld) * 4;
    pieces.push_back({b.first, b.last, b.bytes, &b.offset});
  }
  for (Acts& a : acts_) pieces.push_back({a.first, a.last, a.bytes, &a.offset});
  std::stable_sort(pieces.begin(), pieces.end(),
                   [](const Piece& a, const Piece& b) { return a.first < b.first; });
  size_t total = 0;
  std::vector<Piece> live;
  for (const Piece& piece : pieces) {
    std::erase_if(live, [&](const Piece& other) { return other.last < piece.first; });
    std::sort(live.begin(), live.end(),
              [](const Piece& a, const Piece& b) { return *a.offset < *b.offset; });
    size_t offset = 0;
    for (const Piece& other : live) {
      if (offset + piece.bytes + kAlign <= *other.offset) break;
      offset = std::max(offset, round_up(*other.offset + other.bytes + kAlign, kAlign));
    }
    *piece.offset = offset;
    live.push_back(piece);
    total = std::max(total, offset + piece.bytes + kAlign);
  }
  arena_ = std::make_unique<HugeMemory>(total + kAlign);
}

void Program::resolve() {
  for (Buffer& b : buffers_) {
    const Buffer& home = b.alias >= 0 ? buffers_[b.alias] : b;
    b.data = reinterpret_cast<float*>(arena_->data() + home.offset);
  }
  for (Acts& a : acts_) a.data = arena_->data() + a.offset;
  auto bind = [&](Stage& s) {
    if (s.out_id >= 0) s.out = buffers_[s.out_id].data, s.ldo = buffers_[s.out_id].ld;
    if (s.x_id >= 0) s.x = buffers_[s.x_id].data, s.ldx = buffers_[s.x_id].ld;
    if (s.y_id >= 0) s.y = buffers_[s.y_id].data, s.ldy = buffers_[s.y_id].ld;
  };
  const uint8_t* next = nullptr;
  for (size_t i = sections_.size(); i-- > 0;) {
    Section& section = sections_[i];
    for (Stage& stage : section.stages) bind(stage);
    bind(section.attend);
    for (size_t g = section.groups.size(); g-- > 0;) {
      LinearGroup& group = section.groups[g];
      for (BufferId id : group.out_ids) {
        group.outs.push_back(buffers_[id].data);
        group.ldo.push_back(buffers_[id].ld);
      }
      group.call = {0,
                    group.mats[0].k,
                    acts_[group.acts].data,
                    static_cast<int64_t>(group.mats.size()),
                    group.mats.data(),
                    group.outs.data(),
                    group.ldo.data(),
                    group.biases.data(),
                    1,
                    next};
      next = group.mats[0].data;
    }
  }
  // After the head comes the first matrix of the next step.
  for (size_t i = sections_.size(); i-- > 0;)
    if (!sections_[i].groups.empty()) {
      sections_[i].groups.back().call.next = next;
      break;
    }
}

}  // namespace twostroke
