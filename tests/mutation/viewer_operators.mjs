// Small faults that can be planted in a script, found in its syntax tree. Each is a piece of the text and
// what to write in its place, so that everything else stays as it was.
import { createHash } from 'node:crypto';
import { createRequire } from 'node:module';

const require = createRequire(new URL('../../viewer/tests/package.json', import.meta.url));
const { parse } = require('acorn');

const boundaries = { '<': '<=', '<=': '<', '>': '>=', '>=': '>' };
const equalities = { '===': '!==', '!==': '===', '==': '!=', '!=': '==' };
const arithmetic = { '+': '-', '-': '+', '*': '/', '/': '*', '%': '*', '**': '*', '<<': '>>', '>>': '<<', '|': '&', '&': '|' };
const assignments = { '+=': '-=', '-=': '+=', '*=': '/=', '/=': '*=', '|=': '&=' };

const isSimple = (node) => node.type === 'Identifier' || node.type === 'ThisExpression'
  || (node.type === 'MemberExpression' && !node.computed && isSimple(node.object));
const isText = (node) => node.type === 'TemplateLiteral' || (node.type === 'Literal' && typeof node.value === 'string')
  || (node.type === 'BinaryExpression' && (isText(node.left) || isText(node.right)));
const isNumber = (node) => node.type === 'Literal' && typeof node.value === 'number';
const isBare = (node) => isSimple(node) || node.type === 'Literal' || node.type === 'CallExpression';

// Every fault of a script, in the order of the text: {id, file, line, operator, before, after, begin, end}.
// An id stays while the text of its function does; there are no line numbers in it.
export function mutantsOf(file, source) {
  const found = [];
  const text = (node) => source.slice(node.start, node.end);
  const inBrackets = (node) => (isBare(node) ? text(node) : `(${text(node)})`);

  const add = (node, operator, after, scope) => found.push({ begin: node.start, end: node.end, operator, after, scope: scope.join('.') });
  const swap = (node, parts, operator, scope) => {
    for (let i = 0; i + 1 < parts.length; ++i) {
      const [left, right] = [parts[i], parts[i + 1]];
      if (!left || !right || text(left) === text(right)) continue;
      if (!isSimple(left) || !isSimple(right)) continue;
      add(node, operator, source.slice(node.start, left.start) + text(right) + source.slice(left.end, right.start) + text(left) + source.slice(right.end, node.end), scope);
    }
  };
  // Another sign between two operands; the tree does not say where the sign stands.
  const resign = (node, operator, sign, scope) => {
    const gap = source.slice(node.left.end, node.right.start).replace(node.operator, () => sign);
    add(node, operator, source.slice(node.start, node.left.end) + gap + source.slice(node.right.start, node.end), scope);
  };
  const condition = (node, scope) => {
    if (!node || (node.type === 'BinaryExpression' && node.operator in equalities)) return;  // that is a fault of its own
    if (node.type === 'UnaryExpression' && node.operator === '!') add(node, 'negate', inBrackets(node.argument), scope);
    else add(node, 'negate', `!${inBrackets(node)}`, scope);
  };

  const faults = {
    IfStatement: (node, scope) => condition(node.test, scope),
    WhileStatement: (node, scope) => condition(node.test, scope),
    DoWhileStatement: (node, scope) => condition(node.test, scope),
    ForStatement: (node, scope) => condition(node.test, scope),
    ConditionalExpression: (node, scope) => condition(node.test, scope),
    LogicalExpression(node, scope) {
      add(node, 'drop_operand', inBrackets(node.left), scope);
      add(node, 'drop_operand', inBrackets(node.right), scope);
    },
    BinaryExpression(node, scope) {
      if (node.operator in boundaries) resign(node, 'boundary', boundaries[node.operator], scope);
      else if (node.operator in equalities) resign(node, 'equality', equalities[node.operator], scope);
      else if (node.operator in arithmetic && !isText(node)) resign(node, 'arithmetic', arithmetic[node.operator], scope);
    },
    AssignmentExpression(node, scope) {
      if (node.operator in assignments && !isText(node.right)) resign(node, 'arithmetic', assignments[node.operator], scope);
    },
    UpdateExpression(node, scope) {
      const other = node.operator === '++' ? '--' : '++';
      add(node, 'arithmetic', node.prefix ? other + text(node.argument) : text(node.argument) + other, scope);
    },
    Literal(node, scope) {
      if (typeof node.value === 'boolean') add(node, 'boolean', String(!node.value), scope);
      if (!isNumber(node)) return;
      add(node, 'constant', String(node.value + 1), scope);
      add(node, 'constant', node.value >= 1 ? String(node.value - 1) : `(${node.value - 1})`, scope);
    },
    CallExpression: (node, scope) => swap(node, node.arguments, 'swap_arguments', scope),
    NewExpression: (node, scope) => swap(node, node.arguments, 'swap_arguments', scope),
    ExpressionStatement(node, scope) {
      const { type } = node.expression;
      const changes = type === 'AssignmentExpression' || type === 'UpdateExpression' || type === 'CallExpression' || type === 'AwaitExpression';
      if (changes) add(node, 'drop_statement', ';', scope);
    },
    ThrowStatement: (node, scope) => add(node, 'ignore_error', ';', scope),
    ReturnStatement(node, scope) {
      if (!node.argument) add(node, 'drop_statement', ';', scope);
      else if (node.argument.type === 'ArrayExpression') swap(node.argument, node.argument.elements, 'swap_returned', scope);
    },
    ContinueStatement: (node, scope) => add(node, 'drop_statement', ';', scope),
    BreakStatement: (node, scope) => add(node, 'drop_statement', ';', scope),
    MemberExpression(node, scope, fields) {
      if (node.object.type !== 'ThisExpression' || node.computed || !fields.includes(node.property.name) || fields.length < 2) return;
      if (node.isTarget) return;
      add(node, 'wrong_field', `this.${fields[(fields.indexOf(node.property.name) + 1) % fields.length]}`, scope);
    },
  };

  // The names of a class's fields: what is assigned to this.<name> in it.
  const fieldsOf = (node) => {
    const names = new Set();
    walk(node, (each) => {
      if (each.type === 'AssignmentExpression' && each.left.type === 'MemberExpression' && each.left.object.type === 'ThisExpression'
        && !each.left.computed) names.add(each.left.property.name);
    });
    return [...names].sort();
  };
  const nameOf = (node) => {
    if (node.type === 'ClassDeclaration' || node.type === 'FunctionDeclaration') return node.id.name;
    if (node.type === 'MethodDefinition') return node.key.name;
    if (node.type === 'VariableDeclarator' && node.id.type === 'Identifier') return node.id.name;
    if (node.type === 'Property' && node.value.type === 'FunctionExpression') return node.key.name;
    return null;
  };

  const visit = (node, scope, fields) => {
    const name = nameOf(node);
    const inside = name ? [...scope, name] : scope;
    const own = node.type === 'ClassDeclaration' ? fieldsOf(node) : fields;
    if (node.type === 'AssignmentExpression' || node.type === 'UpdateExpression') (node.left || node.argument).isTarget = node.operator === '=';
    if (node.type === 'AssignmentPattern' && (isNumber(node.right) || typeof node.right.value === 'boolean')) {
      add(node.right, 'default', isNumber(node.right) ? String(node.right.value + 1) : String(!node.right.value), inside);
      visit(node.left, inside, own);
      return;
    }
    faults[node.type]?.(node, inside, own);
    for (const child of childrenOf(node)) visit(child, inside, own);
  };
  visit(parse(source, { ecmaVersion: 'latest' }), [], []);

  const counts = new Map();
  return found.sort((a, b) => a.begin - b.begin || a.end - b.end || (a.operator < b.operator ? -1 : 1)).map(({ begin, end, operator, after, scope }) => {
    const before = source.slice(begin, end);
    const name = `${file}:${scope}:${operator}:${oneLine(before)} -> ${oneLine(after)}`;
    counts.set(name, (counts.get(name) ?? -1) + 1);
    const line = source.slice(0, begin).split('\n').length;
    return { id: `${name}:${counts.get(name)}`, file, line, operator, before, after, begin, end };
  });
}

export const plant = (mutant, source) => source.slice(0, mutant.begin) + mutant.after + source.slice(mutant.end);

// For a name: on one line, and not too long.
const oneLine = (text) => {
  const line = text.replace(/\s+/g, ' ');
  return line.length <= 100 ? line : `${line.slice(0, 80)}…${createHash('sha256').update(line).digest('hex').slice(0, 8)}`;
};

function* childrenOf(node) {
  for (const [name, value] of Object.entries(node)) {
    if (name === 'key' && !node.computed && node.type !== 'MethodDefinition') continue;  // names are no expressions
    for (const each of Array.isArray(value) ? value : [value]) if (each && typeof each.type === 'string') yield each;
  }
}

function walk(node, see) {
  see(node);
  for (const child of childrenOf(node)) walk(child, see);
}
