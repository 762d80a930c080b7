//! A small assembler for eBPF: the dozen instructions that a packet filter needs, with jumps to
//! places that come later. (Encoding: the kernel's `Documentation/bpf/standardization`.)

/// An instruction as the kernel takes it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Instruction {
    code: u8,
    /// Destination in the lower half, source in the upper.
    registers: u8,
    offset: i16,
    immediate: i32,
}

const _: () = assert!(size_of::<Instruction>() == 8);

/// A register. `R0` holds results; `R1` to `R5` arguments, which calls destroy; `R6` lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub(super) enum Register {
    R0 = 0,
    R1 = 1,
    R2 = 2,
    R3 = 3,
    R4 = 4,
    R5 = 5,
    R6 = 6,
}

/// How many bytes a load reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Width {
    Byte = 0x10,
    Half = 0x08,
    Word = 0x00,
}

/// When a jump is taken, comparing unsigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    NotEqual = 0x50,
    Greater = 0x20,
    Less = 0xa0,
}

/// A place that jumps go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Label(usize);

const LOAD_MEMORY: u8 = 0x61;
const LOAD_IMMEDIATE_64: u8 = 0x18;
/// Source register of a 64-bit load whose immediate is the descriptor of a map.
const PSEUDO_MAP: u8 = 1;
const MOVE: u8 = 0xb7;
const MOVE_REGISTER: u8 = 0xbf;
const ADD: u8 = 0x07;
const AND: u8 = 0x57;
const TO_BIG_ENDIAN: u8 = 0xdc;
const JUMP: u8 = 0x05;
/// Comparisons of all 64 bits of two registers, and of the lower 32 with a number.
const COMPARE_REGISTERS: u8 = 0x0d;
const COMPARE_WORD: u8 = 0x06;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;

/// A program being written.
#[derive(Default)]
pub(super) struct Assembler {
    program: Vec<Instruction>,
    /// By label: where it is.
    labels: Vec<Option<usize>>,
    /// Jumps whose distance is filled in at the end.
    jumps: Vec<(usize, Label)>,
}

impl Assembler {
    fn emit(&mut self, code: u8, to: Register, from: u8, offset: i16, immediate: i32) {
        let registers = to as u8 | from << 4;
        self.program.push(Instruction { code, registers, offset, immediate });
    }

    /// A label for a place yet to come.
    pub(super) fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// The label's place is here.
    pub(super) fn here(&mut self, label: Label) {
        self.labels[label.0] = Some(self.program.len());
    }

    /// `to = memory[from + offset]`, in the machine's byte order.
    pub(super) fn load(&mut self, width: Width, to: Register, from: Register, offset: i16) {
        self.emit(LOAD_MEMORY | width as u8, to, from as u8, offset, 0);
    }

    /// `to = value`.
    pub(super) fn set(&mut self, to: Register, value: i32) {
        self.emit(MOVE, to, 0, 0, value);
    }

    /// `to = from`.
    pub(super) fn copy(&mut self, to: Register, from: Register) {
        self.emit(MOVE_REGISTER, to, from as u8, 0, 0);
    }

    /// `to += value`.
    pub(super) fn add(&mut self, to: Register, value: i32) {
        self.emit(ADD, to, 0, 0, value);
    }

    /// `to &= value`.
    pub(super) fn and(&mut self, to: Register, value: i32) {
        self.emit(AND, to, 0, 0, value);
    }

    /// The lower `bits` (16, 32) of a register from network byte order to the machine's.
    pub(super) fn network_to_host(&mut self, register: Register, bits: i32) {
        self.emit(TO_BIG_ENDIAN, register, 0, 0, bits);
    }

    /// `to =` the map of this descriptor.
    pub(super) fn load_map(&mut self, to: Register, descriptor: i32) {
        self.emit(LOAD_IMMEDIATE_64, to, PSEUDO_MAP, 0, descriptor);
        self.emit(0, Register::R0, 0, 0, 0);
    }

    /// Jumps if `a` compares so with `b`.
    pub(super) fn jump_if(&mut self, when: When, a: Register, b: Register, label: Label) {
        self.jumps.push((self.program.len(), label));
        self.emit(COMPARE_REGISTERS | when as u8, a, b as u8, 0, 0);
    }

    /// Jumps if the lower 32 bits of `a` compare so with `value`.
    pub(super) fn jump_if_word(&mut self, when: When, a: Register, value: u32, label: Label) {
        self.jumps.push((self.program.len(), label));
        self.emit(COMPARE_WORD | when as u8, a, 0, 0, value as i32);
    }

    /// Jumps.
    pub(super) fn jump(&mut self, label: Label) {
        self.jumps.push((self.program.len(), label));
        self.emit(JUMP, Register::R0, 0, 0, 0);
    }

    /// Calls a helper of the kernel: `R0 = helper(R1, ...)`.
    pub(super) fn call(&mut self, helper: i32) {
        self.emit(CALL, Register::R0, 0, 0, helper);
    }

    /// Ends with `R0` as result.
    pub(super) fn exit(&mut self) {
        self.emit(EXIT, Register::R0, 0, 0, 0);
    }

    /// The program.
    ///
    /// # Panics
    /// If a label has no place, or one too far away.
    pub(super) fn finish(mut self) -> Vec<Instruction> {
        for (at, label) in self.jumps {
            let to = self.labels[label.0].expect("every label has a place");
            let distance = to as i64 - at as i64 - 1;
            self.program[at].offset = distance.try_into().expect("jumps are short");
        }
        self.program
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_encoded_as_documented() {
        let mut a = Assembler::default();
        let end = a.label();
        a.load(Width::Half, Register::R5, Register::R2, 12);
        a.load_map(Register::R1, 7);
        a.jump_if_word(When::NotEqual, Register::R5, 0xffff_fffe, end);
        a.network_to_host(Register::R5, 32);
        a.here(end);
        a.exit();
        let bytes: Vec<_> =
            a.finish().iter().map(|i| (i.code, i.registers, i.offset, i.immediate)).collect();
        let expected = [
            (0x69, 0x25, 12, 0),
            (0x18, 0x11, 0, 7),
            (0, 0, 0, 0),
            (0x56, 0x05, 1, -2),
            (0xdc, 0x05, 0, 32),
            (0x95, 0, 0, 0),
        ];
        assert_eq!(bytes, expected);
    }
}
